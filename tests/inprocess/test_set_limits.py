"""`manage.py set_limits`: what it changes, and what it says where it cannot."""

from dataclasses import replace
from io import StringIO

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from responses_app.protocol.prices import prices
from responses_app.resources.projects.callers import create_key
from responses_app.resources.projects.model import ApiKey, Project

pytestmark = pytest.mark.django_db


def set_limits(*flags: str) -> str:
    """Run the command; return what it printed."""
    out = StringIO()
    call_command("set_limits", *flags, stdout=out)
    return out.getvalue()


def test_it_changes_what_is_given_and_nothing_else() -> None:
    secret, row = create_key("team", requests_per_minute=5)
    said = set_limits("--key", secret, "--tokens-per-day", "1000", "--websockets", "3")
    assert said.splitlines() == [
        "requests per minute: 5",
        "input tokens per minute: no limit",
        "output tokens per minute: no limit",
        "tokens per day: 1000",
        "concurrent responses: no limit",
        "websockets: 3",
        "monthly spend cents: no limit",
    ]
    set_limits("--key", row.pk, "--requests-per-minute", "none")
    row = ApiKey.objects.get(pk=row.pk)
    assert (row.requests_per_minute, row.tokens_per_day, row.websockets) == (None, 1000, 3)
    assert Project.objects.get(pk="team").tokens_per_day is None


def test_it_changes_a_project() -> None:
    create_key("team")
    set_limits("--project", "team", "--concurrent-responses", "7")
    assert Project.objects.get(pk="team").concurrent_responses == 7


def test_spending_is_limited_where_there_are_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    create_key("team")
    for whose in (["--project", "team"], ["--organization"]):
        with pytest.raises(CommandError, match="Set PRICES first"):
            set_limits(*whose, "--monthly-spend-cents", "5")
        assert "monthly spend cents: no limit" in set_limits(*whose, "--monthly-spend-cents", "none")
    with pytest.raises(CommandError, match="Set PRICES first"):
        call_command("create_key", "--monthly-spend-cents", "5", stdout=StringIO())
    monkeypatch.setattr(settings, "RESPSITE", replace(settings.RESPSITE, prices=prices('{"m": {"input": 1}}')))
    set_limits("--project", "team", "--monthly-spend-cents", "5")
    assert Project.objects.get(pk="team").monthly_spend_cents == 5
    assert set_limits("--organization", "--monthly-spend-cents", "7") == "monthly spend cents: 7\n"
    assert set_limits("--organization") == "monthly spend cents: 7\n"
    with pytest.raises(CommandError, match="All projects together have no --websockets"):
        set_limits("--organization", "--websockets", "5")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--project", "nobody"], "There is no project nobody"),
        (["--key", "sk-nothing"], "There is no key sk-nothing"),
        (["--project", "team", "--websockets", "0"], "a whole number of at least 1, or none"),
        (["--project", "team", "--websockets", "many"], "a whole number of at least 1, or none"),
        (["--project", "team", "--key", "key_1"], "not allowed with"),
        ([], "one of the arguments"),
    ],
)
def test_it_says_what_is_wrong(flags: list[str], said: str) -> None:
    create_key("team")
    with pytest.raises(CommandError, match=said):
        set_limits(*flags)
