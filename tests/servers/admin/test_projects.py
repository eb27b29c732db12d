"""Projects in the admin: their limits are seen and changed, by who may."""

from django.contrib.admin.models import LogEntry
from django.test import Client

from responses_app.models import Project
from responses_app.stores.database.callers import create_key
from tests.servers.admin.conftest import ClientWith

LIST = "/admin/responses_app/project/"
NOTHING = {"requests_per_minute": "", "concurrent_responses": ""}


def page(project: str) -> str:
    return f"{LIST}{project}/change/"


def test_limits_are_changed_and_shown(admin: Client) -> None:
    create_key("team-a")
    create_key("team-a")
    answer = admin.post(page("team-a"), {**NOTHING, "requests_per_minute": "60", "tokens_per_day": "5000000"})
    assert answer.status_code == 302
    row = Project.objects.get()
    assert (row.requests_per_minute, row.tokens_per_day, row.websockets) == (60, 5_000_000, None)
    shown = admin.get(LIST).content.decode()
    assert "requests per minute: 60" in shown
    assert "tokens per day: 5,000,000" in shown
    assert 'class="field-keys_counted">2<' in shown
    assert LogEntry.objects.count() == 1
    admin.post(page("team-a"), {**NOTHING, "tokens_per_day": ""})
    row.refresh_from_db()
    assert (row.requests_per_minute, row.tokens_per_day) == (None, None)


def test_its_name_stays_and_what_is_not_a_limit_is_refused(admin: Client) -> None:
    create_key("team-a")
    admin.post(page("team-a"), {"name": "other"})
    assert Project.objects.get().name == "team-a"
    answer = admin.post(page("team-a"), {"websockets": "-1"})
    assert "greater than or equal to 0" in answer.content.decode()
    assert Project.objects.get().websockets is None


def test_who_may_look_alone_changes_nothing(client_with: ClientWith) -> None:
    create_key("team-a")
    client = client_with("view_project")
    assert client.get(page("team-a")).status_code == 200
    assert client.post(page("team-a"), {"websockets": "1"}).status_code == 403
    assert Project.objects.get().websockets is None
    assert client.get(f"{LIST}add/").status_code == client.get(f"{LIST}team-a/delete/").status_code == 403
