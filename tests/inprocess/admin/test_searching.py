"""The search of the list of responses by what was said, who may use it, and the columns and filters beside it."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client

from responses_app.extensions.console.admin import filters
from responses_app.models import Response
from responses_app.protocol.prices import prices
from responses_app.resources.audit.model import AuditRow
from responses_app.resources.projects.model import ApiKey, Project
from responses_app.stores.database.words import SearchTooSlow, read_some
from tests.inprocess.admin import samples
from tests.inprocess.admin.conftest import ClientWith

LIST = "/admin/responses_app/response/"
DAY = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def listed(client: Client, **query: str) -> list[int]:
    """Return the numbers of the responses on a page of the list."""
    text = page(client, **query)
    return [int(each, 16) for each in re.findall(r'field-identifier">.*?<span class="id" title="resp_(\w+)">', text)]


def page(client: Client, **query: str) -> str:
    answer = client.get(f"{LIST}?{urlencode(query)}")
    assert answer.status_code == 200, answer.headers
    return answer.content.decode()


def said(number: int, asked: str, **columns: Any) -> Response:
    return samples.response(number, asked=[samples.said(asked)], output=[samples.answered("Well.")], **columns)


def read() -> None:
    while read_some(connection):
        pass


def test_what_was_said_is_found(admin: Client) -> None:
    said(1, "How many eggs does a turtle lay?", created_at=DAY)
    said(2, "Is a turtle a bird?", created_at=DAY + timedelta(days=1), project="other")
    assert listed(admin, q="turtle") == []  # not in the index yet
    read()
    assert listed(admin, q="turtle") == [2, 1]
    assert listed(admin, q='"a bird" turt*') == [2]
    assert listed(admin, q="well") == [2, 1]
    assert listed(admin, q="turtle", project="default") == [1]
    assert listed(admin, q="turtle", created_at__year="2026", created_at__month="3", created_at__day="5") == [2]
    assert listed(admin, q="turtle", status="failed") == []
    assert listed(admin, q=f"resp_{1:032x}") == [1]
    said(3, "turtle")
    read()
    assert listed(admin, q="turtle", age="hour") == [3]


def test_a_search_is_recorded_without_its_words(admin: Client) -> None:
    said(1, "turtle", model="m")
    read()
    listed(admin, q="turtle", model="m")
    listed(admin, q=f"resp_{1:032x}")  # an id is no content
    [row] = AuditRow.objects.filter(action="content_searched")
    assert row.actor_name == "root"
    assert json.loads(row.detail) == {"found": 1, "filters": {"model": "m"}}


def test_who_may_not_see_content_neither_searches_it_nor_sees_its_first_words(client_with: ClientWith) -> None:
    said(1, "turtle")
    read()
    staff = client_with("view_response")
    text = page(staff)
    assert "turtle" not in text
    assert "first words" not in text
    assert "your permissions do not include the content" in text
    assert listed(staff, q="turtle") == []
    assert listed(staff, q=f"resp_{1:032x}") == [1]
    assert not AuditRow.objects.filter(action__in=("content_searched", "content_viewed")).exists()


@pytest.mark.parametrize("term", ["%", "%%%", '""', "'", "\\", "*", "()&|!<->:*", "…?!"])
def test_signs_alone_are_nothing_to_look_for(admin: Client, term: str) -> None:
    said(1, "turtle")
    read()
    text = page(admin, q=term)
    assert "A search needs letters or digits" in text
    assert "0 responses" in text
    assert not AuditRow.objects.filter(action="content_searched").exists()


@pytest.mark.parametrize(
    "term", ["x" * 10_000, "turtle " * 1_500, "a b c " * 1_700, "é" * 10_000, "' OR 1=1 --", "NEAR(", "\ud83d"]
)
def test_any_search_is_answered(admin: Client, term: str) -> None:
    said(1, "turtle")
    read()
    answer = admin.get(LIST, {"q": term.encode("utf-8", "replace")})
    assert answer.status_code == 200
    assert ("Only the first 1,000 characters" in answer.content.decode()) == (len(term) > 1_000)


def test_a_nul_is_refused_in_words(admin: Client) -> None:
    said(1, "turtle")
    answer = admin.get(f"{LIST}?q=tur%00tle")
    assert answer.status_code == 200
    assert "Null characters are not allowed" in answer.content.decode()


def test_a_search_that_takes_too_long_says_what_to_do(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_slow(*_: object) -> list[str]:
        raise SearchTooSlow

    said(1, "turtle")
    monkeypatch.setattr(filters, "find", too_slow)
    assert "The search was ended after 2 s. Choose a project or dates" in page(admin, q="turtle")
    [row] = AuditRow.objects.filter(action="content_searched")
    assert json.loads(row.detail)["found"] == "ended after its time"


def test_more_than_a_search_finds_is_said(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "MAX_FOUND", 2)
    for number in (1, 2, 3):
        said(number, "turtle", created_at=DAY + timedelta(days=number))
    read()
    assert listed(admin, q="turtle") == [3, 2]
    assert "These are the newest 2 with these words" in page(admin, q="turtle")


def test_a_row_has_its_first_words_before_and_after_it_is_read(admin: Client) -> None:
    said(1, "A <b>bold</b>\n question\u202e", project="zoo")
    for _ in range(2):
        assert '<td class="field-words">A &lt;b&gt;bold&lt;/b&gt; question\\u202e</td>' in page(admin)
        read()


def test_a_row_names_its_key_or_its_user(admin: Client) -> None:
    Project.objects.create(name="zoo", created_at=DAY)
    key = ApiKey.objects.create(
        id="key_1", name="the zoo's", digest="d", prefix="sk-abc", created_at=DAY, project_id="zoo"
    )
    user = admin.session["_auth_user_id"]
    said(1, "a", key_id=key.pk, project="zoo", created_at=DAY)
    said(2, "b", key_id=f"session:{user}", created_at=DAY + timedelta(days=1))
    said(3, "c", key_id="key_gone", created_at=DAY + timedelta(days=2))
    shown = re.findall(r'field-key_name">([^<]*)<', page(admin))
    assert shown == ["key_gone", "root", "the zoo&#x27;s"]
    assert listed(admin, key="key_1") == [1]
    assert listed(admin, key=f"session:{user}") == [2]
    assert listed(admin, key="key_1", project="default") == []
    assert listed(admin, key="nobody") == []
    assert listed(admin, key="\0") == []
    assert '<a href="?key=key_1">the zoo' in page(admin)
    assert "?key=key_1" not in page(admin, project="default")  # a key of another project


@pytest.mark.django_db
def test_a_key_is_looked_for_in_the_index_of_its_project() -> None:
    Project.objects.create(name="zoo", created_at=DAY)
    ApiKey.objects.create(id="key_1", digest="d", prefix="sk-abc", created_at=DAY, project_id="zoo")
    if connection.vendor != "sqlite":
        pytest.skip("SQLite says how it would do it")
    chosen = searching_key("key_1")
    assert "response_newest (project=?" in chosen.order_by("-created_at", "-pk").defer("body")[:50].explain()
    assert "COVERING INDEX response_newest" in chosen.order_by().values("created_at")[:100].explain()


def searching_key(key_id: str) -> Any:
    from responses_app.extensions.console.admin.filters import KeyFilter

    key_filter = KeyFilter.__new__(KeyFilter)
    key_filter.used_parameters = {"key": key_id}
    return key_filter.queryset(None, Response.objects.all())  # type: ignore[arg-type]


def test_a_row_has_its_cost_where_there_are_prices(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    said(1, "a", model="m", input_tokens=2_000_000, cached_tokens=0, output_tokens=1_000_000)
    said(2, "b", model="free")
    assert "field-cost" not in page(admin)
    told = prices('{"m": {"input": 2, "output": 10}}')
    monkeypatch.setattr(settings, "RESPSITE", replace(settings.RESPSITE, prices=told, prices_currency="eur"))
    assert re.findall(r'field-cost">([^<]*)<', page(admin)) == ["–", "14.00 EUR"]
