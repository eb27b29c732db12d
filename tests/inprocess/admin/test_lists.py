"""The list of responses: contents, filters, search, dates, and what a page costs."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import Model
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from responses_app.extensions.console.admin import lists
from responses_app.models import PublicName, Response
from responses_app.resources.batches.model import Batch
from responses_app.resources.conversations.model import Conversation, ConversationItem
from responses_app.resources.files.model import StoredFile
from tests.inprocess.admin import samples

LIST = "/admin/responses_app/response/"
SESSION_AND_USER = 2
RECORDED = 4  # what is shown for the first time: a savepoint, the trail's end, an entry, and the savepoint's release
COUNT, PAGE, SEEN_SINCE, SEEN, OLDEST, KEYS, WORDS = 1, 1, 1, 1, 1, 1, 2  # words: those in the index, and the others
PROJECTS = 2  # of the table: one, and the look for another
A_PAGE = SESSION_AND_USER + RECORDED + COUNT + PAGE + SEEN_SINCE + SEEN + OLDEST + KEYS + WORDS
DAY = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def listed(client: Client, query: str = "") -> list[str]:
    """Return the ids on a page of the list."""
    answer = client.get(f"{LIST}{query}")
    assert answer.status_code == 200, answer.headers
    return re.findall(r'field-identifier">.*?<span class="id" title="(\w+)">', answer.content.decode())


def test_a_row_says_what_matters(admin: Client) -> None:
    samples.response(1, created_at=DAY, background=True, after="resp_before", conversation_id="conv_1", project="other")
    text = admin.get(LIST).content.decode()
    for shown in (
        *(f"resp_{1:032x}", '<span class="pill pill-completed">completed</span>', "gpt-oss-120b"),
        *("04 Mar 05:06:07", "2026-03-04 05:06:07 UTC"),
        *(">1,200</span>", ">340<", "180 ms", "2.4 s", "websocket", "background", "other"),
        *("/admin/responses_app/response/resp_before/change/", "/admin/responses_app/conversation/conv_1/change/"),
    ):
        assert shown in text


def test_the_background_is_said_once(admin: Client) -> None:
    samples.response(1, background=True, transport="background")
    assert re.findall(r'class="chip">([^<]*)<', admin.get(LIST).content.decode()) == ["background"]


@pytest.mark.parametrize("rows", [3, 2_000])
@pytest.mark.parametrize("query", ["", "?p=2", "?status=completed&background__exact=0", "?model=gpt-oss-120b&age=week"])
def test_a_page_costs_the_same_whatever_there_is(
    admin: Client, rows: int, query: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    samples.many(rows if "p=" not in query else 2_000)
    look = 1 if "status" in query or "model" in query else 0  # how far back filters look
    with django_assert_num_queries(A_PAGE + look) as captured:
        listed(admin, query)
    # Of what is not in the index yet, the beginning is read.
    read = " ".join(re.sub(r"SUBSTR\([^)]*\)", "", query["sql"]) for query in captured)
    assert [name for name in ("body", "input_items", "request") if f'"{name}"' in read] == []


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("?status=failed", {2}),
        ("?model=small", {3}),
        ("?transport=sse", {3}),
        ("?project=other", {2}),
        ("?background__exact=1", {3}),
        ("?age=day", {1, 2}),
        ("?age=hour", {1}),
        ("?age=nonsense", {1, 2, 3}),
        ("?status=failed&project=other&age=week", {2}),
        ("?status=queued", set()),
    ],
)
def test_filters(admin: Client, query: str, found: set[int]) -> None:
    now = datetime.now(UTC)
    samples.response(1)
    samples.response(2, status="failed", project="other", created_at=now - timedelta(hours=3))
    old = now - timedelta(days=30)
    samples.response(3, model="small", transport="sse", background=True, created_at=old)
    assert set(listed(admin, query)) == {f"resp_{number:032x}" for number in found}


def test_filters_offer_what_there_is(admin: Client) -> None:
    samples.response(1)
    assert "?model=" not in admin.get(LIST).content.decode()  # there is one: nothing to choose
    samples.response(2, model="a & b")
    text = admin.get(LIST).content.decode()
    assert '<a href="?model=a+%26+b">a &amp; b</a>' in text
    assert "?project=" not in text


def test_search_finds_ids_their_beginnings_what_continues_them_and_conversations(admin: Client) -> None:
    first, second, _ = samples.agent_loop()
    samples.response(0x77, part=False)
    assert listed(admin, f"?q={first.pk}") == [second.pk, first.pk]
    assert listed(admin, f"?q= {second.pk} ") == [second.pk]
    assert listed(admin, "?q=resp_0000000000000000000000000000007") == [f"resp_{0x77:032x}"]
    assert listed(admin, "?q=conv_1") == [second.pk, first.pk]
    assert len(listed(admin, "?q=resp_")) == 3
    for nothing in ("gpt", "RESP_", "%25", "é", "x" * 200, "&q=nothing"):
        assert listed(admin, f"?q={nothing}") == []
    for everything in ("%20", "%00"):  # Django's form refuses a NUL
        assert len(listed(admin, f"?q={everything}")) == 3


def test_search_finds_what_clients_know_by_another_id(admin: Client) -> None:
    for number in (1, 2, 3):
        samples.response(number)
    for number in (1, 2):
        PublicName.objects.create(id=f"resp_{number:032x}", name="my-id", leg=number)
    assert set(listed(admin, "?q=my-id")) == {f"resp_{number:032x}" for number in (1, 2)}


def test_search_says_what_it_looks_for(admin: Client) -> None:
    assert "by its id or the beginning of it" in admin.get(LIST).content.decode()


def test_a_list_promises_no_page_with_everything_and_clears_what_narrows_it(admin: Client) -> None:
    samples.many(60)
    whole = admin.get(LIST).content.decode()
    assert "Show all" not in whole
    assert "Clear the search" not in whole
    for narrowed in ("?q=resp_", "?status=failed"):
        text = admin.get(f"{LIST}{narrowed}").content.decode()
        assert "Show all" not in text
        assert '<a href="?">Clear the search and the filters</a>' in text


def test_dates_lead_from_months_to_days(admin: Client) -> None:
    samples.response(1, created_at=DAY)
    samples.response(2, created_at=DAY + timedelta(days=1))
    samples.response(3, created_at=DAY - timedelta(days=800))
    year = "?created_at__year=2026"
    assert f'<a href="{year}">2026</a>' in admin.get(LIST).content.decode()
    month = "?created_at__month=3&amp;created_at__year=2026"
    assert f'<a href="{month}">March 2026</a>' in admin.get(f"{LIST}{year}").content.decode()
    day = "created_at__day=4&amp;created_at__month=3&amp;created_at__year=2026"
    assert f'<a href="?{day}">04 Mar</a>' in admin.get(f"{LIST}{month}".replace("&amp;", "&")).content.decode()
    assert listed(admin, f"?{day}".replace("&amp;", "&")) == [f"resp_{1:032x}"]
    assert len(listed(admin, year)) == 2


@pytest.mark.parametrize("query", ["?created_at__year=x", "?created_at__month=99", "?created_at__year=0", "?body=x"])
def test_wrong_parameters_break_nothing(admin: Client, query: str) -> None:
    samples.response(1)
    assert admin.get(f"{LIST}{query}").status_code in (200, 302, 400)


@pytest.mark.parametrize(
    "query",
    ["created_at__month=a", "created_at__day=1e30", "created_at__year=9999", "created_at__day=99999999999999999999"],
)
def test_what_is_no_date_leads_to_the_list(admin: Client, query: str) -> None:
    assert admin.get(f"{LIST}?{query}").headers["location"] == f"{LIST}?e=1"


@pytest.mark.parametrize("model", ["response", "conversation", "storedfile", "skillversion", "batch"])
@pytest.mark.parametrize("term", ["\U0010ffff", "resp_\ud7ff", "a" * 10_000, "\u202e", "\t\x7f"])
def test_what_no_id_begins_with_is_searched_for_in_vain(admin: Client, model: str, term: str) -> None:
    assert admin.get(f"/admin/responses_app/{model}/", {"q": term}).status_code == 200


def test_no_more_is_counted_than_can_be_paged_to(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "MAX_COUNTED", 120)
    samples.many(300)
    text = admin.get(LIST).content.decode()
    assert "More than 120 responses" in text
    assert "?p=3" in text
    assert "?p=4" not in text
    assert len(listed(admin, "?p=3")) == 20
    samples.response(1, status="queued")
    assert "\n1 response\n" in admin.get(f"{LIST}?status=queued").content.decode()


@pytest.mark.django_db
def test_lists_and_counts_read_an_index_alone() -> None:
    samples.many(50)
    rows = Response.objects.filter(status="failed", model="x", transport="sse", background=True)
    count = rows.order_by().values("created_at")[:100]
    assert "USING COVERING INDEX response_listed" in count.explain()
    assert "USING INDEX response_listed" in rows.order_by("-created_at", "-pk").defer("body")[:50].explain()


def test_filters_look_through_the_newest_of_the_dates_that_are_chosen(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "MAX_FILTERED", 3)
    for number in range(1, 7):
        status = "failed" if number in (1, 5) else "completed"
        samples.response(number, created_at=DAY + timedelta(days=number), status=status)
    assert listed(admin, "?status=failed") == [f"resp_{5:032x}"]
    assert "Choose dates to look further back" in admin.get(f"{LIST}?status=failed").content.decode()
    first = DAY + timedelta(days=1)
    dates = f"created_at__year={first.year}&created_at__month={first.month}&created_at__day={first.day}"
    assert listed(admin, f"?status=failed&{dates}") == [f"resp_{1:032x}"]
    assert len(listed(admin, "")) == 6
    assert listed(admin, f"?status=failed&q=resp_{1:032x}") == [f"resp_{1:032x}"]


def test_conversations_are_counted_together(admin: Client, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for number in range(40):
        Conversation.objects.create(
            id=f"conv_{number}", created_at=DAY + timedelta(minutes=number), title=f"Talk {number}"
        )
        ConversationItem.objects.bulk_create(
            ConversationItem(
                conversation_id=f"conv_{number}", item_id=f"item_{position}", position=position, created_at=DAY, item={}
            )
            for position in range(number)
        )
    with django_assert_num_queries(SESSION_AND_USER + RECORDED + PROJECTS + COUNT + PAGE + 1 + OLDEST):
        text = admin.get("/admin/responses_app/conversation/").content.decode()
    assert 'field-items_counted">39</td>' in text
    assert 'field-items_counted">0</td>' in text
    assert "Talk 17" in text
    found = admin.get("/admin/responses_app/conversation/?q=conv_3").content.decode()
    assert found.count('class="field-named"') == 11


def at(number: int) -> datetime:
    """Return a time of its own for each row."""
    return DAY + timedelta(minutes=number)


@pytest.mark.parametrize(
    "make",
    [
        lambda number, project: Conversation(id=f"conv_{number}", created_at=at(number), project=project),
        lambda number, project: StoredFile(
            id=f"file-{number}", created_at=at(number), project=project, filename="a.txt", bytes=1, purpose="user_data"
        ),
        lambda number, project: Batch(id=f"batch_{number}", created_at=at(number), expires_at=DAY, project=project),
    ],
    ids=["conversations", "files", "batches"],
)
def test_they_are_filtered_by_the_projects_that_they_have(
    admin: Client, make: Callable[[int, str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [make(number, project) for number, project in enumerate(["a & b", "a & b", "c", "c", "c"])]
    for row in rows:
        row.save()
    path = f"/admin/responses_app/{rows[0]._meta.model_name}/"
    text = admin.get(path).content.decode()
    assert '<a href="?project=a+%26+b">a &amp; b</a>' in text
    assert '<a href="?project=c">c</a>' in text
    assert [shown_ids(admin, f"{path}?project={project}") for project in ("a+%26+b", "c", "d", "%00")] == [2, 3, 0, 0]
    monkeypatch.setattr(lists, "MAX_FILTERED", 2)
    assert [shown_ids(admin, f"{path}?project={project}") for project in ("a+%26+b", "c")] == [0, 2], (
        "of the newest two"
    )


def shown_ids(admin: Client, path: str) -> int:
    """Return how many rows a list shows."""
    answer = admin.get(path)
    assert answer.status_code == 200, answer.headers
    return answer.content.decode().count('class="field-identifier"')


def test_workers_live_or_are_gone(admin: Client) -> None:
    samples.workers(datetime.now(UTC))
    text = admin.get("/admin/responses_app/worker/").content.decode()
    assert text.count("pill-alive") == 2
    assert text.count("pill-gone") == 1
    assert admin.get("/admin/responses_app/worker/worker_1/change/").status_code == 302


def test_the_first_page_leads_to_the_dashboard(admin: Client) -> None:
    assert 'class="rs-door" href="/admin/dashboard/"' in admin.get("/admin/all/").content.decode()
