"""`manage.py set_retention`: what it changes and records, and what it says where it cannot."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from responses_app.management.commands import set_retention as command
from responses_app.resources.audit.model import AuditRow
from responses_app.resources.projects.callers import create_key
from responses_app.resources.projects.model import Project

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no worker: there is none."""
    monkeypatch.setattr(command, "AGAIN_SECONDS", 0.0)


def set_retention(*flags: str) -> str:
    """Run the command; return what it printed."""
    out = StringIO()
    call_command("set_retention", *flags, stdout=out)
    return out.getvalue()


def test_it_is_set_shown_and_recorded() -> None:
    create_key("team")
    assert set_retention("--project", "team") == "team: server\n"
    for value, hours in (("never", 0), ("72", 72), ("forever", -1), ("server", None)):
        assert set_retention("--project", "team", value, "--yes").splitlines()[0] == f"team: {value}"
        assert Project.objects.get(pk="team").retention_hours == hours
    entries = AuditRow.objects.filter(action="retention_changed").order_by("number")
    assert [json.loads(row.detail)["retention"] for row in entries] == ["never", "72", "forever", "server"]
    assert {(row.actor_kind, row.project, row.subject) for row in entries} == {("command", "team", "team")}


def test_the_default_project_needs_no_key() -> None:
    assert set_retention("--project", "default", "never", "--yes").startswith("default: never")
    assert Project.objects.get(pk="default").retention_hours == 0


@pytest.mark.parametrize("value", ["never", "1"])
def test_nothing_is_erased_that_nobody_has_confirmed(value: str) -> None:
    create_key("team")
    with pytest.raises(CommandError, match="Nothing was changed"):
        set_retention("--project", "team", value)
    assert Project.objects.get(pk="team").retention_hours is None
    set_retention("--project", "team", "forever")  # erases nothing, and so asks nothing


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--project", "nobody", "never"], "There is no project nobody"),
        (["--project", "team", "0"], "is not one of 'server', 'never', 'forever'"),
        (["--project", "team", "soon"], "or a whole number of hours from 1 to 87,600"),
        (["never"], "the following arguments are required: --project"),
    ],
)
def test_it_says_what_is_wrong(flags: list[str], said: str) -> None:
    create_key("team")
    with pytest.raises(CommandError, match=said):
        set_retention(*flags)
