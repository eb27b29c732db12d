"""Each page and each path of the API, asked by nobody, by each role and by a superuser: a real request for each.

The pages are those of the URL resolver and the paths those of the table of endpoints: a new one fails the test that it
has no row in. Whatever they answer, the marker that is planted in all content is shown to nobody who may not see any.
"""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import pytest
from django.apps import apps
from django.urls import get_resolver
from django.urls.resolvers import URLResolver
from websockets.exceptions import InvalidStatus
from websockets.sync import client as websockets

from responses_app.api.endpoints import ENDPOINTS
from responses_app.web.endpoint import Endpoint
from tests.inprocess.roles.conftest import House
from tests.inprocess.roles.people import PASS
from tests.inprocess.roles.planted import MARKER
from tests.kit.stored import stored
from tests.kit.waiting import eventually

STAFF = frozenset({"viewer", "auditor", "operator", "admin", "root"})
CONTENT = frozenset({"auditor", "admin", "root"})
OPERATES = frozenset({"operator", "admin", "root"})
ADMINS = frozenset({"admin", "root"})
NOBODY: frozenset[str] = frozenset()
LOGIN, FORBIDDEN = 302, 403


@dataclass(frozen=True)
class Row:
    """What a page answers."""

    path: str  # with names of what was planted in braces
    may: Set[str] = STAFF  # who is let in
    ok: int = 200  # the answer to them
    no: int = FORBIDDEN  # to the others who are signed in
    nobody: int = LOGIN  # to who is not
    shows: bool = False  # the marker to those who are let in, and may see content


# By models: who sees the list and the history, who adds, who deletes; the last two say the form by their 200.
MODELS: Mapping[str, tuple[Set[str], Set[str], Set[str]]] = {
    "response": (STAFF, NOBODY, OPERATES),
    "conversation": (STAFF, NOBODY, OPERATES),
    "storedfile": (STAFF, NOBODY, NOBODY),
    "skillversion": (STAFF, NOBODY, NOBODY),
    "batch": (STAFF, NOBODY, NOBODY),
    "project": (STAFF, NOBODY, NOBODY),
    "worker": (STAFF, NOBODY, NOBODY),
    "webhookdelivery": (STAFF, NOBODY, NOBODY),
    "webhookendpoint": (OPERATES, NOBODY, NOBODY),
    "apikey": (OPERATES, OPERATES, NOBODY),
    "adminkey": (OPERATES, NOBODY, NOBODY),
    "auditrow": (CONTENT, NOBODY, NOBODY),
    "user": (ADMINS, ADMINS, ADMINS),
    "group": (ADMINS, ADMINS, ADMINS),
}
NAMES_CONTENT = ("response", "conversation", "storedfile", "skillversion")  # lists with words of users
# Pages of one thing; those of the other models lead to their list, which refuses by itself.
CHANGES: Mapping[str, tuple[Set[str], bool]] = {
    "response": (STAFF, True),
    "conversation": (CONTENT, True),
    "project": (STAFF, False),
    "user": (ADMINS, False),
    "group": (ADMINS, False),
}


def rows_of(model: str) -> Iterator[tuple[str, Row]]:
    """Yield the rows of Django's pages of a model."""
    app = "auth" if model in ("user", "group") else "responses_app"
    pattern, one = f"admin/{app}/{model}/", "<path:object_id>/"
    path, own = f"/{pattern}", f"/{pattern}{{{model}}}/"
    sees, adds, deletes = MODELS[model]
    yield pattern, Row(path, sees, shows=model in NAMES_CONTENT)
    yield f"{pattern}add/", Row(f"{path}add/", adds)
    yield f"{pattern}{one}history/", Row(f"{own}history/", sees)
    yield f"{pattern}{one}delete/", Row(f"{own}delete/", deletes)
    may, shows = CHANGES.get(model, (NOBODY, False))
    yield f"{pattern}{one}change/", Row(f"{own}change/", may, shows=shows, no=FORBIDDEN if may else 302)
    yield f"{pattern}{one}", Row(own, ok=302)


ROWS: Mapping[str, Row] = {
    **{pattern: row for model in MODELS for pattern, row in rows_of(model)},
    "admin/responses_app/response/<path:object_id>/json/": Row(
        "/admin/responses_app/response/{response}/json/", CONTENT, shows=True
    ),
    "admin/auth/user/<id>/password/": Row("/admin/auth/user/{user}/password/", ADMINS),
    "admin/": Row("/admin/", ok=302),  # to the dashboard
    "admin/all/": Row("/admin/all/"),
    "admin/dashboard/": Row("/admin/dashboard/"),
    "admin/usage/": Row("/admin/usage/?csv=1"),
    "admin/login/": Row("/admin/login/", ok=302, nobody=200),
    "admin/logout/": Row("/admin/logout/", ok=405, nobody=302),
    "admin/password_change/": Row("/admin/password_change/"),
    "admin/password_change/done/": Row("/admin/password_change/done/"),
    "admin/autocomplete/": Row("/admin/autocomplete/", NOBODY),
    "admin/jsi18n/": Row("/admin/jsi18n/"),
    "admin/r/<path:content_type_id>/<path:object_id>/": Row("/admin/r/1/1/", ok=404),
    "admin/^(?P<app_label>auth|responses_app)/$": Row("/admin/responses_app/"),
    "admin/(?P<url>.*)$": Row("/admin/nothing/", ok=404),
    "watch/responses/<str:response_id>.trace.json": Row("/watch/responses/{response}.trace.json", nobody=401),
    "watch/responses/<str:response_id>.json": Row("/watch/responses/{response}.json", nobody=401, shows=True),
    "watch/responses/<str:response_id>": Row("/watch/responses/{response}?turns=1", shows=True),
    "watch/compare": Row("/watch/compare?left={first}&right={response}", shows=True),
    "watch/rollouts": Row("/watch/rollouts"),
    "watch/rollouts/<str:name>": Row("/watch/rollouts/{rollout}?g=0", shows=True),
    "docs": Row("/docs", ok=301, nobody=301),
    "^docs/(?P<path>.*)$": Row("/docs/", nobody=200),
    "favicon.ico": Row("/favicon.ico", ok=302, nobody=302),
    "": Row("/", nobody=200),
}


def patterns(of: Sequence[object], beginning: str = "") -> Iterator[str]:
    """Yield all patterns of the resolver, as the parts that they are made of."""
    for each in of:
        whole = f"{beginning}{each.pattern}"  # type: ignore[attr-defined]
        if isinstance(each, URLResolver):
            yield from patterns(each.url_patterns, whole)
        else:
            yield whole


def test_every_page_has_a_row() -> None:
    assert set(patterns(get_resolver("respsite.urls").url_patterns)) == set(ROWS)


@pytest.mark.parametrize("pattern", ROWS)
def test_a_page(house: House, pattern: str) -> None:
    row = ROWS[pattern]
    for who, browser in house.browsers.items():
        answer = browser.get(row.path.format(**house.ids), headers={"accept": "text/html"})
        expected = row.nobody if who == "nobody" else row.ok if who in row.may else row.no
        assert (who, answer.status_code) == (who, expected)
        sees = row.shows and who in row.may & CONTENT
        assert (who, MARKER in answer.text) == (who, sees)


@pytest.mark.parametrize("query", ["?q={response}", "?q=xylophonemarker", "?model=demo", "?project=default"])
def test_a_list_that_is_searched_and_filtered_shows_no_more(house: House, query: str) -> None:
    for model, (sees, _, _) in MODELS.items():
        if model in ("user", "group", "auditrow") or (query.startswith("?m") and model != "response"):
            continue
        asked = query.format(**house.ids)
        for who in sorted(sees - CONTENT):
            answer = house.browsers[who].get(f"/admin/responses_app/{model}/{asked}")
            # The page has what was searched for in its field, and nowhere else.
            shown = re.sub(r'value="[^"]*"|\?[^"]*"|data-[\w-]+="[^"]*"', "", answer.text)
            assert (model, who, MARKER in shown) == (model, who, False)


@pytest.mark.parametrize("lookup", ["", "__contains", "__regex", "__gt", "__in"])
def test_what_is_in_a_column_cannot_be_guessed_by_filters_in_the_address(house: House, lookup: str) -> None:
    for model, (sees, _, _) in MODELS.items():
        if model in ("user", "group", "auditrow"):
            continue
        browser = house.browsers["operator" if "operator" in sees else "root"]
        for field in apps.get_model("responses_app", model)._meta.get_fields():
            # The names of the list's own filters.
            if f"{field.name}{lookup}" in ("status", "project", "model", "transport"):
                continue
            answer = browser.get(f"/admin/responses_app/{model}/?{field.name}{lookup}=x")
            # To the list without a filter.
            assert (model, field.name, answer.headers.get("location", "")[-3:]) == (model, field.name, "e=1")


@pytest.mark.parametrize("query", ["?part=tokens&g=0", "?part=tokens&g=0&as=table", "?with=task-2"])
def test_the_tokens_of_a_roll_out_are_content(house: House, query: str) -> None:
    for who in STAFF:
        answer = house.browsers[who].get(f"/watch/rollouts/{house.ids['rollout']}{query}")
        assert (who, answer.status_code) == (who, 200 if who in CONTENT else 403)


async def test_a_search_by_what_was_said_finds_it_for_those_alone_who_may_see_it(house: House) -> None:
    path = f"/admin/responses_app/response/?q={MARKER}"
    auditor = house.browsers["auditor"]
    await eventually(lambda: house.ids["response"] in auditor.get(path).text)  # once its words are in the index
    for who in STAFF:
        assert (who, house.ids["response"] in house.browsers[who].get(path).text) == (who, who in CONTENT)


# The API by a session, as a page of the server comes in.
READS = frozenset({"api.model", "api.responses", "api.containers", "api.files", "api.vector_stores"})
WRITES = READS - {"api.model"}
IDS = {  # by the names of parameters, the names of what was planted
    **{"response_id": "response", "chat_id": "first", "conversation_id": "conversation", "file_id": "file"},
    **{"vector_store_id": "vector_store", "completion_id": "completion", "message_batch_id": "message_batch"},
    **{"prompt_id": "prompt", "skill_id": "skill", "rollout_id": "rollout", "webhook_endpoint_id": "webhookendpoint"},
}
SHOWS = {
    *("/v1/responses/{response_id}", "/v1/responses/{response_id}/input_items", "/v1/chat/completions"),
    *("/v1/chat/completions/{completion_id}", "/v1/chat/completions/{completion_id}/messages", "/v1/files"),
    *("/v1/files/{file_id}", "/v1/files/{file_id}/content", "/v1/batches", "/v1/batches/{batch_id}"),
    *("/v1/vector_stores", "/v1/vector_stores/{vector_store_id}", "/v1/playground/prompts"),
    "/v1/vector_stores/{vector_store_id}/files/{file_id}/content",
}


def path_of(endpoint: Endpoint, ids: Mapping[str, str]) -> str:
    """Return the path to what was planted; where something would be written, to nothing that is there."""

    def named(parameter: re.Match[str]) -> str:
        name = parameter[1]
        if endpoint.method != "GET":
            return "none"
        if name == "batch_id":
            return ids["file_batch" if "file_batches" in endpoint.path else "batch"]
        return "demo" if name == "model" else ids.get(IDS.get(name, ""), "none")

    return re.sub(r"{(\w+)(?::path)?}", named, endpoint.path)


def expected(endpoint: Endpoint, who: str) -> str:
    """Return what a session may at a path: in, 401 or 403."""
    if endpoint.is_open:
        return "in"
    if who not in ADMINS:
        return "401"
    return "in" if endpoint.scope in (READS if endpoint.method == "GET" else WRITES) else "403"


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: f"{each.method} {each.path}")
def test_a_path_of_the_api(house: House, endpoint: Endpoint) -> None:
    for who, browser in house.browsers.items():
        body = {} if endpoint.method == "POST" else None
        answer = browser.request(endpoint.method, path_of(endpoint, house.ids), json=body, headers=PASS)
        got = str(answer.status_code) if answer.status_code in (401, 403) else "in"
        assert (who, got) == (who, expected(endpoint, who)), answer.text
        if endpoint.method == "GET" and endpoint.path in SHOWS:
            assert (who, MARKER in answer.text) == (who, who in ADMINS)
        elif who not in CONTENT:
            assert MARKER not in answer.text


def test_all_paths_that_show_the_marker_are_paths() -> None:
    assert {each.path for each in ENDPOINTS if each.method == "GET"} >= SHOWS


@pytest.mark.parametrize("who", ["nobody", *sorted(STAFF)])
def test_a_websocket(house: House, who: str) -> None:
    session = house.browsers[who].cookies.get("sessionid", "")
    how = {"origin": house.server.url, "subprotocols": ["respsite-session.default"]}
    status = 101
    try:
        headers = {"Cookie": f"sessionid={session}"}
        websockets.connect(house.server.ws_url, additional_headers=headers, **how).close()  # type: ignore[arg-type]
    except InvalidStatus as refused:
        status = refused.response.status_code
    assert status == (101 if who in ADMINS else 401)


def test_those_who_were_shown_content_are_recorded_and_nobody_else(house: House) -> None:
    for who, browser in house.browsers.items():
        browser.get("/watch/responses/{response}".format(**house.ids))
        if who in CONTENT:
            browser.get("/admin/responses_app/response/{response}/json/".format(**house.ids))
    query = "SELECT DISTINCT action, actor_name FROM responses_app_auditrow WHERE action LIKE 'content_%'"
    recorded = stored(house.server, query)
    for action in ("content_viewed", "content_exported"):
        assert {who for each, who in recorded if each == action} == CONTENT
