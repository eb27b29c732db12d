"""The page of usage: right sums and costs, addresses that can be sent on, a CSV that no spreadsheet executes."""

import csv
import io
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from html import unescape
from typing import Any

import pytest
from django.conf import settings
from django.http import QueryDict
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from responses_app.extensions.console.admin.usage import BY, MAX_DAYS, UsageRow, UsageView, harmless, table
from responses_app.protocol.prices import prices
from responses_app.resources.projects.model import ApiKey, Project
from responses_app.resources.usage.model import Usage

TODAY = date(2026, 11, 27)
NOON = int(datetime(2026, 11, 27, 12, tzinfo=UTC).timestamp())
DAY = 86_400
SESSION_AND_USER, TABLE, CHART = 2, 1, 1
PRICES = prices('{"m": {"input": 2, "cached_input": 0.5, "output": 10}}')
HOSTILE = ['=HYPERLINK("http://x","y")', "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "=cmd|' /C calc'!A0"]


@pytest.fixture(autouse=True)
def priced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "RESPSITE", replace(settings.RESPSITE, prices=PRICES, prices_currency="eur"))


def used(number: int, **fields: Any) -> None:
    """Keep what a request has used."""
    about = {"project": "a", "key_id": "key_1", "model": "m", "source": "responses", "batch": False, "at": NOON}
    tokens = {"input_tokens": 1_000_000, "cached_tokens": 400_000, "output_tokens": 100_000}
    Usage.objects.create(id=f"resp_{number}", **{**about, **tokens, **fields})


def view(**asked: str) -> UsageView:
    """Return what an address asks for today."""
    return UsageView.of(asked, TODAY)


def page_of(client: Client, query: str = "") -> str:
    """Return the page as text."""
    answer = client.get(f"/admin/usage/{query}")
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.django_db
def test_costs_are_sums_by_model() -> None:
    used(1)
    used(2, model="n")
    used(3, project="b", model="n")
    used(4, project="b", at=NOON - 40 * DAY)
    rows, complete = table(view())
    first, second = rows
    assert complete
    figures = (first.value, first.requests, first.input, first.cached, first.output)
    assert figures == ("a", 2, 2_000_000, 800_000, 200_000)
    assert (first.cost, first.unpriced, first.cost_text) == (Decimal("2.4"), {"n"}, "2.40 EUR")
    assert (first.cost_note, second.cost_note) == ("some models have no price", "")
    assert (second.value, second.cost, second.cost_text) == ("b", None, "no price")
    assert [row.value for row in table(view(since="2026-10-01"))[0]] == ["a", "b"]
    assert table(view(since="2026-10-01"))[0][1].cost == Decimal("2.4")


@pytest.mark.django_db
@pytest.mark.parametrize("by", BY)
def test_each_way_to_see_it_has_the_same_total(by: str) -> None:
    for number, fields in enumerate(
        [{}, {"project": "b"}, {"key_id": "session:1"}, {"model": "n"}, {"source": "embeddings"}, {"at": NOON - DAY}]
    ):
        used(number, **fields)
    rows, _ = table(view(by=by))
    assert sum(row.requests for row in rows) == 6
    assert sum(row.input for row in rows) == 6_000_000
    assert sum(row.cost or 0 for row in rows) == 5 * Decimal("2.4")
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("asked", "is_so"),
    [
        ({}, ("project", "2026-10-29", "2026-11-27")),
        ({"by": "day", "since": "2026-11-01", "until": "2026-11-03"}, ("day", "2026-11-01", "2026-11-03")),
        ({"by": "nonsense", "since": "soon", "until": "\0"}, ("project", "2026-10-29", "2026-11-27")),
        ({"since": "2026-12-24", "until": "2026-11-01"}, ("project", "2026-11-01", "2026-11-01")),
        ({"until": "9999-12-31"}, ("project", "2026-10-29", "2026-11-27")),
        ({"since": "0001-01-01"}, ("project", "2026-10-29", "2026-11-27")),
        ({"since": "1999-01-01"}, ("project", str(TODAY - timedelta(days=MAX_DAYS - 1)), "2026-11-27")),
    ],
)
def test_an_address_that_makes_no_sense_is_bounded(asked: dict[str, str], is_so: tuple[str, ...]) -> None:
    seen = view(**asked)
    assert (seen.by, str(seen.since), str(seen.until)) == is_so


def test_an_address_can_be_sent_on() -> None:
    seen = view(by="key", since="2026-11-01", until="2026-11-02", project="a&b=c", model="m/n")
    assert view(**QueryDict(seen.address()[1:]).dict()) == seen
    assert view(**QueryDict(seen.address(project="")[1:]).dict()).filters == {"model": "m/n"}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("asked", "requests"),
    [
        ({"project": "b"}, 1),
        ({"key": "key_1"}, 3),
        ({"user": "7"}, 1),
        ({"model": "m"}, 3),
        ({"source": "embeddings"}, 1),
        ({"source": "nonsense"}, 0),
        ({"project": "%"}, 0),
        ({"project": "a", "model": "n"}, 1),
        ({"project": "x" * 10_000}, 0),
        ({"project": "' OR 1=1 --"}, 0),
    ],
)
def test_filters(asked: dict[str, str], requests: int) -> None:
    for number, fields in enumerate(
        [{}, {"project": "b", "source": "embeddings"}, {"key_id": "session:7"}, {"model": "n"}]
    ):
        used(number, **fields)
    assert sum(row.requests for row in table(view(**asked))[0]) == requests


@pytest.mark.parametrize("rows", [0, 3, 300])
@pytest.mark.parametrize("by", BY)
def test_a_page_costs_the_same_whatever_there_is(
    admin: Client, rows: int, by: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    today = int(datetime.now(UTC).timestamp())
    for number in range(rows):
        used(number, project=f"p{number}", key_id=f"key_{number}" if number % 2 else "session:1", at=today)
    names = 1 if rows and by in ("key", "user") else 0
    with django_assert_num_queries(SESSION_AND_USER + TABLE + CHART + names):
        html = page_of(admin, f"?by={by}")
    assert ("Nothing was used in this time" in html) is (rows == 0)


def test_names_are_shown_and_nothing_of_them_is_executed(admin: Client) -> None:
    today = int(datetime.now(UTC).timestamp())
    Project.objects.create(name="a", created_at=datetime.now(UTC))
    ApiKey.objects.create(
        id="key_1",
        project_id="a",
        name="<script>alert(1)</script>\u202e",
        prefix="sk-x",
        digest="d",
        created_at=datetime.now(UTC),
    )
    used(1, at=today, model="<img src=x>")
    used(2, at=today, key_id="")
    html = page_of(admin, "?by=key&project=a&model=")
    assert "<script>alert" not in html
    assert "\u202e" not in html
    assert "<script>alert(1)</script>" in unescape(html)
    assert "without a key" in html
    assert "<img src=x>" not in page_of(admin, "?by=model")
    assert "<script>" not in page_of(admin, "?project=<script>").replace('<script type="module"', "").replace(
        "<script src", ""
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_cells_are_no_formulas(text: str) -> None:
    assert harmless(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "team-a", "a=b", "gpt-oss-120b", "key_1"])
def test_other_cells_stay_as_they_are(text: str) -> None:
    assert harmless(text) == text


def test_csv(admin: Client) -> None:
    today = int(datetime.now(UTC).timestamp())
    for number, name in enumerate([*HOSTILE, 'a"b,c\nd']):
        used(number, at=today, project=name, model="m" if number else "=n")
    answer = admin.get("/admin/usage/?csv=1")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"].startswith('attachment; filename="usage-by-project-20')
    head, *lines = csv.reader(io.StringIO(answer.content.decode(), newline=""))
    assert head[0] == "project"
    assert {line[0] for line in lines} == {*(f"'{name}" for name in HOSTILE), 'a"b,c\nd'}
    costs = {line[0]: (line[5], line[6], line[7]) for line in lines}
    assert costs.pop(f"'{HOSTILE[0]}") == ("", "eur", "'=n")
    assert {Decimal(cost) for cost, _, _ in costs.values()} == {Decimal("2.4")}


def test_a_row_adds_up_exactly() -> None:
    row = UsageRow("a")
    assert row.cost_text == "no price"
    row.cost = Decimal("0.0000012")
    assert row.cost_text == "0.000001 EUR"
    row.cost = Decimal("1234.567")
    assert row.cost_text == "1,234.57 EUR"
