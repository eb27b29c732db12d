"""The dashboard: right numbers, few queries, and shapes that fit."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any
from unittest.mock import Mock

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from responses_app.extensions.console.admin import dashboard as counting
from responses_app.extensions.console.admin import panels
from responses_app.extensions.console.admin.charts import (
    HEIGHT,
    TOP,
    ChartPlan,
    Series,
    bar_chart,
    line_chart,
    nice_top,
)
from responses_app.extensions.console.admin.dashboard import PERIODS, STEPS, Bin, page, running, statistics
from responses_app.limits.suspects import Stage, name_of
from responses_app.models import Response, Worker
from responses_app.protocol.prices import prices
from responses_app.resources.projects.callers import create_key
from responses_app.resources.usage.model import Usage
from responses_app.wiring.site import get_site
from tests.inprocess.admin import samples
from tests.inprocess.admin.conftest import ClientWith

SESSION_AND_USER, SINCE, COUNTED, RUNNING, WORKERS = 2, 1, 1, 1, 1
FAILED, SLOWEST, STORES, CHOICES = 1, 1, 2, 3
A_PAGE = SESSION_AND_USER + SINCE + COUNTED + RUNNING + WORKERS + FAILED + SLOWEST + STORES + CHOICES
NOW = datetime(2026, 11, 21, 14, 35, 20, tzinfo=UTC)


def hour(number: int, minute: int = 0) -> datetime:
    """Return a time of this day."""
    return NOW.replace(hour=number, minute=minute, second=0)


@pytest.mark.parametrize("rows", [0, 3, 2_000])
@pytest.mark.parametrize("span", ["day", "week", "nonsense"])
def test_a_page_costs_the_same_whatever_there_is(
    admin: Client, rows: int, span: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    samples.many(rows, days=0.5)
    samples.workers(datetime.now(UTC))
    errors = 1 if Response.objects.filter(status="failed").exists() else 0
    with django_assert_num_queries(A_PAGE + errors):
        html = admin.get(f"/admin/dashboard/?span={span}").content.decode()
    assert html.count("<svg viewBox") >= 3
    assert ("Nothing in this time" in html) is (rows == 0)


@pytest.mark.django_db
def test_responses_are_counted_by_hour_and_status() -> None:
    samples.response(1, created_at=hour(14, 1), input_tokens=10, cached_tokens=4, output_tokens=7, first_token_ms=100)
    samples.response(2, created_at=hour(14, 34), first_token_ms=300)
    samples.response(3, created_at=hour(13, 59), status="failed", first_token_ms=None)
    samples.response(4, created_at=hour(14) - timedelta(hours=23))
    samples.response(5, created_at=hour(14) - timedelta(hours=23, seconds=1))
    counted = statistics(NOW, hours=24, hours_a_bin=1)
    assert counted.complete
    assert [each.start for each in counted.bins] == [hour(14) - timedelta(hours=back) for back in range(23, -1, -1)]
    last = counted.bins[-1]
    assert (dict(last.statuses), last.input_tokens, last.cached_tokens) == ({"completed": 2}, 1210, 804)
    assert dict(counted.bins[-2].statuses) == {"failed": 1}
    assert counted.bins[-2].first_token(0.5) is None
    assert counted.bins[0].responses == 1
    assert counted.total.responses == 4


@pytest.mark.django_db
def test_a_week_is_counted_in_larger_bins() -> None:
    for hours in (0, 3, 30, 150):
        samples.response(hours, created_at=NOW - timedelta(hours=hours))
    counted = statistics(NOW, hours=168, hours_a_bin=4)
    assert len(counted.bins) == 42
    assert counted.bins[-1].start == hour(12)
    assert [each.responses for each in counted.bins if each.responses] == [1, 1, 1, 1]
    assert counted.total.responses == 4


@pytest.mark.django_db
def test_too_many_responses_are_counted_from_a_later_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MAX_COUNTED", 5)
    for number in range(20):
        samples.response(number, created_at=hour(14) - timedelta(hours=number))
    counted = statistics(NOW, hours=24, hours_a_bin=1)
    assert not counted.complete
    assert counted.total.responses == 6
    assert counted.since == hour(9)


@pytest.mark.django_db
def test_the_scan_reads_an_index_alone() -> None:
    samples.many(100)
    query, parameters = counting.counting([Bin(NOW)], NOW, timedelta(hours=1))
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {query}", parameters)
        assert "USING COVERING INDEX response_listed (created_at>? AND created_at<?)" in str(cursor.fetchall())
    assert "USING INDEX response_running" in counting._running_query().explain()


@pytest.mark.django_db
def test_what_runs_is_counted_by_worker() -> None:
    for number, (worker, status) in enumerate([("a", "queued"), ("a", "in_progress"), ("b", "queued"), ("", "failed")]):
        samples.response(number, worker=worker, status=status)
    assert running() == {("a", "queued"): 1, ("a", "in_progress"): 1, ("b", "queued"): 1}


@pytest.mark.django_db
def test_the_tiles_tell_the_totals() -> None:
    samples.response(1, created_at=NOW, input_tokens=1_000, cached_tokens=250)
    samples.response(2, created_at=NOW, status="failed", input_tokens=1_000, cached_tokens=250, first_token_ms=None)
    samples.response(3, created_at=NOW, status="in_progress", input_tokens=0, cached_tokens=0, first_token_ms=None)
    samples.workers(NOW)
    shown = page(NOW, PERIODS["day"])
    assert [(value, remark) for _, value, remark in shown["tiles"]] == [
        ("3", "50.0% failed"),
        ("2 k", "25% cached"),
        ("1 k", ""),
        ("180 ms", "p95 180 ms"),
        ("1", "0 queued"),
        ("102", ""),
    ]
    assert shown["alive"] == 2
    assert [(row["alive"], row["connections_bar"]) for row in shown["workers"]] == [(True, 100), (True, 59), (False, 5)]


@given(st.lists(st.integers(0, 60_000), min_size=1))
def test_percentiles_are_those_of_the_times_rounded_down(times: list[int]) -> None:
    def rounded(time: int) -> int:
        step = next((step for most, step in STEPS if time < most), counting.LAST_STEP)
        return time // step * step

    counted = Bin(NOW)
    counted.first_tokens.update(map(rounded, times))
    ordered = sorted(times)
    for share in (0.5, 0.95):
        exact = ordered[max(0, -int(-share * len(times) // 1) - 1)]
        assert counted.first_token(share) == rounded(exact)


@pytest.mark.django_db
def test_the_database_rounds_times_as_it_says() -> None:
    times = [0, 49, 50, 54, 199, 200, 219, 220, 999, 1_000, 1_099, 4_999, 5_000, 5_499, 19_999, 20_000, 21_999, 100_000]
    for number, time in enumerate(times):
        samples.response(number, created_at=NOW, first_token_ms=time)
    counted = statistics(NOW, hours=24, hours_a_bin=1).total.first_tokens
    assert sorted(counted.elements()) == [
        *(0, 49, 50, 50, 195, 200, 200, 220, 980, 1_000, 1_000, 4_900, 5_000, 5_000, 19_500, 20_000, 20_000, 100_000)
    ]


numbers = st.lists(st.none() | st.floats(0, 1e12), min_size=1, max_size=40)


@given(numbers, numbers)
def test_shapes_stay_inside_the_chart(first: list[float | None], second: list[float | None]) -> None:
    length = min(len(first), len(second))
    series = [Series("a", "A", first[:length]), Series("b", "B", second[:length])]
    plan = ChartPlan(
        key="k",
        title="T",
        summary="",
        names=[str(n) for n in range(length)],
        marks=[(0, "0")],
        series=series,
        write=str,
    )
    for bar in bar_chart(plan).bars:
        assert TOP - 0.1 <= bar.y <= bar.y + bar.height <= HEIGHT
    for line in line_chart(plan).lines:
        points = [point.split(",") for path in line.paths for point in path.split()] + [*line.dots]
        assert all(TOP - 0.1 <= float(y) <= HEIGHT for _, y in points)
        assert len(points) == sum(value is not None for value in next(s for s in series if s.name == line.name).values)


@given(st.floats(0, 1e15))
def test_the_top_of_an_axis_is_round_and_near(value: float) -> None:
    assert value * 0.99999 <= nice_top(value) <= max(2.0, 2.6 * value)


def test_no_workers_and_no_responses_are_said(admin: Client) -> None:
    html = admin.get("/admin/dashboard/").content.decode()
    assert "No worker has said that it lives." in html
    assert not Response.objects.exists()
    assert not Worker.objects.exists()


def test_it_is_the_first_page_of_who_may_see_it(client_with: ClientWith) -> None:
    seeing = client_with("view_response")
    answer = seeing.get("/admin/")
    assert (answer.status_code, answer.headers["location"]) == (302, "/admin/dashboard/")
    assert "Recent actions" in seeing.get("/admin/all/").content.decode()


def test_who_may_not_see_it_begins_with_the_tables(client_with: ClientWith) -> None:
    answer = client_with("view_worker").get("/admin/")
    assert answer.status_code == 200
    assert "/admin/responses_app/worker/" in answer.content.decode()
    assert Client().get("/admin/").headers["location"].startswith("/admin/login/")


def told(number: int, code: object, **columns: Any) -> Response:
    return samples.response(number, status="failed", body={"error": {"code": code, "message": "m"}}, **columns)


def test_errors_are_counted_by_their_codes(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, code in enumerate(["server_error", "server_error", "<b>", None, {"a": 1}]):
        told(number, code)
    samples.response(10, status="failed")  # without an error
    told(11, "large", size=panels.MAX_ERROR_BYTES + 1)
    samples.response(12, body={"error": {"code": "not failed"}})
    found = panels.errors(Response.objects.all())
    assert (found.looked_at, found.is_full) == (7, False)
    assert dict(found.codes) == {"server_error": 2, "<b>": 1, "no code": 3, "too large to be read": 1}
    text = admin.get("/admin/dashboard/").content.decode()
    assert '<th scope="row">server_error</th><td>2</td>' in text
    assert '<th scope="row">&lt;b&gt;</th><td>1</td>' in text
    monkeypatch.setattr(panels, "MAX_FAILED", 3)
    assert panels.errors(Response.objects.all()).is_full
    assert "of the newest 3 that failed" in admin.get("/admin/dashboard/").content.decode()


def test_the_slowest_are_linked(admin: Client) -> None:
    for number in range(1, 20):
        samples.response(number, duration_ms=1_000 * number)
    samples.response(20, duration_ms=None, status="in_progress")
    links = re.findall(
        r'href="/admin/responses_app/response/resp_(\w+)/change/"', admin.get("/admin/dashboard/").content.decode()
    )
    assert [int(each, 16) for each in links] == list(range(19, 11, -1))


def test_a_view_is_narrowed_by_its_address(admin: Client) -> None:
    create_key("a")
    _, key = create_key("b")
    now = datetime.now(UTC)
    samples.response(1, project="a", model="m", created_at=now)
    samples.response(2, project="b", model="m", created_at=now, key_id=key.pk, duration_ms=7_000)
    told(3, "broken", project="b", model="n", created_at=now)
    user = admin.session["_auth_user_id"]
    samples.response(4, project="default", model="n", created_at=now, key_id=f"session:{user}")
    for query, count in {
        "": 4,
        "project=b": 2,
        "model=m": 2,
        "project=b&model=n": 1,
        f"key={key.pk}": 1,
        f"key={key.pk}&project=a": 0,
        f"key=session:{user}": 1,
        "project=none": 0,
        "project=%00": 4,  # nothing is left of it
        "project=" + "x" * 3_000: 0,
        "key='": 0,
    }.items():
        text = admin.get(f"/admin/dashboard/?{query}").content.decode()
        assert f"<div><dt>Responses</dt><dd>{count}" in text, query
        assert ("broken" in text) == (query in ("", "project=b", "project=b&model=n", "project=%00")), query
    text = admin.get("/admin/dashboard/?span=week&project=b").content.decode()
    assert '<a href="?span=day&amp;project=b">24 hours</a>' in text
    assert '<option value="b" selected>b</option>' in text
    assert "?age=week&amp;project=b&amp;status=failed" in text


@pytest.mark.django_db
def test_of_a_key_only_the_newest_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MAX_OF_KEY", 5)
    _, key = create_key("a")
    for number in range(20):
        samples.response(number, created_at=hour(14) - timedelta(hours=number), project="a", key_id=key.pk)
    counted = statistics(NOW, hours=24, hours_a_bin=1, chosen=counting.Chosen(project="a", key=key.pk))
    assert not counted.complete
    assert counted.total.responses == 6


def test_what_the_worker_has_is_shown(admin: Client) -> None:
    text = admin.get("/admin/dashboard/").content.decode()
    for name in get_site().engines:
        assert name in text
    assert "background responses wait here" in text
    assert "Responses</th>" in text
    assert "of database" in text


def test_an_extension_that_fails_leaves_the_rest_of_the_page(
    admin: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    works, fails = Mock(figures=lambda site: {"notes kept": "3"}), Mock(label="acme_broken")
    fails.figures.side_effect = RuntimeError("no figures today")
    monkeypatch.setattr(panels, "extensions", lambda: [fails, works])
    page = admin.get("/admin/dashboard/")
    assert page.status_code == 200
    assert "notes kept" in page.content.decode()
    assert "the extension 'acme_broken' did not give its figures" in caplog.text
    assert "no figures today" in caplog.text


def test_requests_that_ran_when_workers_died_are_shown(admin: Client) -> None:
    table, now = get_site().service.running.table, monotonic()
    names = [name_of("shop", text) for text in (b"deadly", b"beside it")]
    assert 'id="suspects"' not in admin.get("/admin/dashboard/").content.decode()
    for name, stage in zip(names, (Stage.CONDEMNED, Stage.SUSPECT), strict=True):
        table.suspect(name, stage, "<shop>", now)
    try:
        text = admin.get("/admin/dashboard/").content.decode()
    finally:
        for name in names:
            table.free(name)
    shown = [names[0].hex(), "refused: two workers died of it", names[1].hex(), "ran when a worker died"]
    assert [text.index(each) for each in shown] == sorted(text.index(each) for each in shown)
    assert "&lt;shop&gt;" in text


def test_costs_are_shown_where_there_are_prices(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "<dt>Cost</dt>" not in admin.get("/admin/dashboard/").content.decode()
    prices_told = prices('{"m": {"input": 2, "output": 10}}')
    monkeypatch.setattr(settings, "RESPSITE", replace(settings.RESPSITE, prices=prices_told, prices_currency="eur"))
    assert "<dt>Cost</dt><dd>0.00 EUR" in admin.get("/admin/dashboard/").content.decode()
    rows = {"a": ("m", 2_000_000), "b": ("m", 1_000_000)}
    for project, (model, tokens) in rows.items():
        Usage.objects.create(
            id=project, at=int(datetime.now(UTC).timestamp()) - 60, project=project, key_id="", model=model,
            source="completions", batch=False, input_tokens=tokens, cached_tokens=0, output_tokens=0,
        )  # fmt: skip
    assert "<dt>Cost</dt><dd>6.00 EUR" in admin.get("/admin/dashboard/").content.decode()
    assert "<dt>Cost</dt><dd>2.00 EUR" in admin.get("/admin/dashboard/?project=b").content.decode()
