"""What can be done in the admin: export, delete, cancel."""

import json

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from responses_app.extensions.console.admin import responses
from responses_app.extensions.console.admin.responses import Cancelled
from responses_app.models import ChainPart, Response, SampledItem
from responses_app.resources.conversations.model import Conversation, ConversationItem
from tests.inprocess.admin import samples
from tests.inprocess.admin.conftest import ClientWith

LIST = "/admin/responses_app/response/"


def act(client: Client, action: str, *ids: str, **more: str) -> object:
    """Choose rows and an action, and follow to the page behind it."""
    return client.post(LIST, {"action": action, "_selected_action": ids, **more}, follow=True)


def messages_of(answer: object) -> list[str]:
    """Return what the page says about what was done."""
    return [str(message) for message in answer.context["messages"]]  # type: ignore[attr-defined]


def test_an_export_has_a_response_a_line(admin: Client) -> None:
    first, second, _ = samples.agent_loop()
    samples.response(3, asked=[samples.said("\ud800\x00\n")])
    answer = admin.post(LIST, {"action": "export", "_selected_action": [first.pk, second.pk, f"resp_{3:032x}"]})
    assert answer["Content-Disposition"] == 'attachment; filename="responses.jsonl"'
    lines = [json.loads(line) for line in answer.content.splitlines()]
    assert [line["response"]["id"] for line in lines] == [f"resp_{number:032x}" for number in (3, 2, 1)]
    assert lines[2] == {"response": first.body, "input_items": first.input_items}


def test_an_export_is_bounded(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MAX_EXPORTED", 70)
    samples.many(200)
    every = {"action": "export", "_selected_action": [f"resp_{0xABC000000:032x}"], "select_across": "1"}
    assert admin.post(LIST, every).content.count(b"\n") == 70
    assert admin.post(f"{LIST}?status=failed", every).content.count(b'"status":"failed"') < 70
    monkeypatch.setattr(responses, "MAX_EXPORTED_BYTES", 1_000)
    assert 0 < len(admin.post(LIST, every).content) <= 1_000


def test_two_are_compared_and_no_other_number(admin: Client) -> None:
    first, second, _ = samples.agent_loop()
    third = samples.response(3)
    answer = admin.post(LIST, {"action": "compare", "_selected_action": [second.pk, first.pk]})
    assert answer.headers["location"] == f"/watch/compare?left={first.pk}&right={second.pk}"
    for ids in ([first.pk], [first.pk, second.pk, third.pk]):
        assert messages_of(act(admin, "compare", *ids)) == ["Select two responses to compare them."]


def test_deleting_asks_first_and_keeps_what_others_need(admin: Client) -> None:
    first, second, _ = samples.agent_loop()
    other = samples.response(3)
    SampledItem.objects.create(id="msg_1", response_id=first.pk, fingerprint="", kind="f", tokens=b"")
    answer = act(admin, "delete_selected", first.pk, other.pk)
    assert b"Are you sure" in answer.content  # type: ignore[attr-defined]
    assert first.pk.encode() in answer.content  # type: ignore[attr-defined]
    assert Response.objects.count() == 3
    assert messages_of(act(admin, "delete_selected", first.pk, other.pk, post="yes")) == [
        "Successfully deleted 2 responses."
    ]
    assert list(Response.objects.values_list("pk", flat=True)) == [second.pk]
    assert set(ChainPart.objects.values_list("pk", flat=True)) == {first.pk, second.pk}  # the second goes on from it
    assert not SampledItem.objects.exists()
    assert Conversation.objects.get().items.count() == 9  # type: ignore[attr-defined]
    assert LogEntry.objects.count() == 2


def test_one_response_can_be_deleted_from_its_page(admin: Client) -> None:
    response = samples.response(1)
    path = f"{LIST}{response}/delete/"
    assert "Are you sure" in admin.get(path).content.decode()
    assert admin.post(path, {"post": "yes"}).status_code == 302
    assert not Response.objects.exists()
    assert not ChainPart.objects.exists()


def test_deleting_all_that_match_stops_at_a_bound(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MAX_CHANGED", 40)
    samples.many(100)
    chosen = (f"resp_{0xABC000000:032x}",)
    answer = act(admin, "delete_selected", *chosen, select_across="1")
    text = answer.content.decode()  # type: ignore[attr-defined]
    assert "Responses: 40" in text
    assert "and 20 more" in text
    ids = [str(pk) for pk in Response.objects.order_by("-created_at", "-pk").values_list("pk", flat=True)[:40]]
    act(admin, "delete_selected", *ids, post="yes")
    assert Response.objects.count() == 60


def test_deleting_conversations_keeps_their_responses(admin: Client) -> None:
    samples.agent_loop()
    path = "/admin/responses_app/conversation/"
    chosen = {"action": "delete_selected", "_selected_action": "conv_1"}
    assert "Are you sure" in admin.post(path, chosen).content.decode()
    admin.post(path, {**chosen, "post": "yes"})
    assert (Conversation.objects.count(), ConversationItem.objects.count(), Response.objects.count()) == (0, 0, 2)
    samples.Conversation.objects.create(id="conv_2", created_at=samples.datetime.now(samples.UTC))
    admin.post(f"{path}conv_2/delete/", {"post": "yes"})
    assert Conversation.objects.count() == 0


def test_cancelling_says_what_could_not_be_cancelled(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, bool]] = []

    def cancel(running: dict[str, bool]) -> Cancelled:
        asked.append(running)
        return Cancelled(here=1, asked=1)

    monkeypatch.setattr(responses, "cancel_responses", cancel)
    ids = [samples.response(n, status=s).pk for n, s in enumerate(("completed", "queued", "in_progress", "queued"))]
    background = samples.response(9, status="queued", background=True).pk
    assert messages_of(act(admin, "cancel", *ids, background)) == [
        "1 response was cancelled.",
        "1 response was given to the workers that run them, to be cancelled.",
        "2 responses were not cancelled: another worker runs them, or they have just ended.",
    ]
    assert asked == [{**dict.fromkeys(ids[1:], False), background: True}]
    assert messages_of(act(admin, "cancel", ids[0])) == ["None of the selected responses is running."]


def test_what_runs_elsewhere_is_left_alone(admin: Client) -> None:
    response = samples.response(1, status="in_progress", worker="worker_9")
    assert "not cancelled" in messages_of(act(admin, "cancel", response.pk))[0]
    assert Response.objects.get().status == "in_progress"


@pytest.mark.parametrize(
    ("permissions", "offered"),
    [
        ((), set()),
        (("delete_response",), {"delete_selected"}),
        (("change_response",), {"cancel"}),
        (("see_content",), {"export"}),
    ],
)
def test_actions_need_djangos_permissions(
    client_with: ClientWith, permissions: tuple[str, ...], offered: set[str]
) -> None:
    response = samples.response(1, status="queued")
    client = client_with("view_response", *permissions)
    form = client.get(LIST).context["action_form"]
    assert {name for name, _ in form.fields["action"].choices if name} == {"compare", *offered}
    for action in {"delete_selected", "cancel", "export"} - offered:
        answer = act(client, action, response.pk, post="yes")
        assert "Content-Disposition" not in answer.headers
    if "delete_selected" not in offered:
        assert Response.objects.count() == 1
