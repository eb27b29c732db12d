"""The admin's pages of webhooks."""

from datetime import UTC, datetime, timedelta

from django.test import Client

from responses_app.resources.webhooks.model import DELIVERED, PARKED, WAITING, WebhookDelivery, WebhookEndpoint
from tests.inprocess.admin.conftest import ClientWith

AT = datetime(2026, 11, 20, tzinfo=UTC)
ENDPOINTS, DELIVERIES = (f"/admin/responses_app/{model}/" for model in ("webhookendpoint", "webhookdelivery"))


def endpoint(**fields: object) -> WebhookEndpoint:
    return WebhookEndpoint.objects.create(
        id="we_1", name="<b>mine\u202e", url="https://example.com/", event_types=["response.completed"], created_at=AT,
        updated_at=AT, secret="the sealed secret", secret_hint="whsec_…", **fields,
    )  # fmt: skip


def delivery(status: str, event_id: str) -> WebhookDelivery:
    return WebhookDelivery.objects.create(
        endpoint_id="we_1", project="default", event_id=event_id, type="response.completed", object_id="resp_1",
        body="{}", created_at=AT, changed_at=AT, due_at=AT, give_up_at=AT + timedelta(days=3), status=status,
        attempts=9, problem="The receiver answered with status 500." if status == PARKED else "",
    )  # fmt: skip


def test_what_was_parked_is_sent_again(admin: Client) -> None:
    endpoint(dropped=1234)
    rows = [delivery(PARKED, "evt_parked"), delivery(WAITING, "evt_waiting"), delivery(DELIVERED, "evt_delivered")]
    html = admin.get(f"{DELIVERIES}?status=parked").content.decode()
    assert "evt_parked" in html
    assert "evt_waiting" not in html
    assert "status 500" in html
    listed = admin.get(ENDPOINTS).content.decode()
    assert "1,234" in listed
    assert not any(each in listed for each in ("<b>mine", "\u202e", "the sealed secret"))
    chosen = {"action": "resend", "_selected_action": [rows[0].pk, rows[1].pk]}
    assert "1 will be sent again; 1 wait" in admin.post(DELIVERIES, chosen, follow=True).content.decode()
    again = WebhookDelivery.objects.get(pk=rows[0].pk)
    assert (again.status, again.attempts, again.event_id) == (WAITING, 0, "evt_parked")
    assert again.give_up_at > datetime.now(UTC) + timedelta(days=2)
    assert WebhookDelivery.objects.get(pk=rows[1].pk).attempts == 9


def test_an_endpoint_is_disabled_and_enabled(admin: Client) -> None:
    endpoint(paused_until=datetime.now(UTC) + timedelta(days=1), failures=7)
    assert "paused" in admin.get(ENDPOINTS).content.decode()
    for action, enabled in (("disable", False), ("enable", True)):
        admin.post(ENDPOINTS, {"action": action, "_selected_action": ["we_1"]})
        row = WebhookEndpoint.objects.get()
        assert (row.enabled, row.paused_until, row.failures) == (enabled, None, 0)


def test_who_may_only_look_sends_nothing(client_with: ClientWith) -> None:
    endpoint()
    row = delivery(PARKED, "evt_parked")
    reader = client_with("view_webhookdelivery", "view_webhookendpoint")
    assert reader.get(DELIVERIES).status_code == reader.get(ENDPOINTS).status_code == 200
    reader.post(DELIVERIES, {"action": "resend", "_selected_action": [row.pk]})
    reader.post(ENDPOINTS, {"action": "disable", "_selected_action": ["we_1"]})
    row.refresh_from_db()
    assert row.status == PARKED
    assert WebhookEndpoint.objects.get().enabled
