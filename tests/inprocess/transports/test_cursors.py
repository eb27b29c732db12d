"""Cursors of every list: a place, whether or not what it names is still there, and nothing that tells of another's."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import pytest

from responses_app.protocol import ids
from tests.kit.closed import bearer
from tests.kit.inprocess import ClosedServer
from tests.kit.skills import zipped

COUNT, AT_ONCE = 5, 2  # what a list has, and what a page of it
HELLO = [{"role": "user", "content": "Hello"}]
WEBHOOK = {"name": "w", "url": "https://93.184.216.34/", "event_types": ["response.completed"]}
PROJECTS = "/v1/organization/projects"


@dataclass(frozen=True)
class Listing:
    """A list of some project's, which has `COUNT` things."""

    path: str
    ids: list[str]  # in the order in which they came in
    cursors: tuple[str, ...] = ("after",)
    delete: str = ""  # the path by which one is deleted, where it is not one below the list's


def made(client: httpx.Client, path: str, **request: Any) -> str:
    answer = client.post(path, **request)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def several(path: str, *cursors: str, **request: Any) -> Callable[[httpx.Client], Listing]:
    """Return what makes a list with one request each."""
    cursors = cursors or ("after",)
    return lambda client: Listing(path, [made(client, path, **request) for _ in range(COUNT)], cursors)


def files(client: httpx.Client) -> Listing:
    upload = partial(made, client, "/v1/files", files={"file": ("a.txt", b"text")}, data={"purpose": "user_data"})
    return Listing("/v1/files", [upload() for _ in range(COUNT)])


def store_files(client: httpx.Client) -> Listing:
    store = made(client, "/v1/vector_stores", json={})
    # Put in the other way round: their ids are not the order of this list.
    order = files(client).ids[::-1]
    for file_id in order:
        made(client, f"/v1/vector_stores/{store}/files", json={"file_id": file_id})
    return Listing(f"/v1/vector_stores/{store}/files", order, ("after", "before"))


def batch_files(client: httpx.Client) -> Listing:
    store, order = made(client, "/v1/vector_stores", json={}), files(client).ids[::-1]
    batch = made(client, f"/v1/vector_stores/{store}/file_batches", json={"file_ids": order})
    path = f"/v1/vector_stores/{store}"
    return Listing(f"{path}/file_batches/{batch}/files", order, ("after", "before"), delete=f"{path}/files")


def conversation_items(client: httpx.Client) -> Listing:
    # The second has an id of the client's own choice; those of the others say nothing of their places.
    said = [{**HELLO[0], "type": "message", **({"id": "msg_mine"} if n == 1 else {})} for n in range(COUNT)]
    path = f"/v1/conversations/{made(client, '/v1/conversations', json={'items': said})}/items"
    listed = client.get(path, params={"order": "asc"}).json()["data"]
    return Listing(path, [each["id"] for each in listed])


def versions(client: httpx.Client) -> Listing:
    skill = made(client, "/v1/skills", files={"files": ("a.zip", zipped())})
    path = f"/v1/skills/{skill}/versions"
    # The first one is the default, and cannot be deleted.
    return Listing(path, [made(client, path, files={"files": ("a.zip", zipped())}) for _ in range(COUNT)])


def long_chats(client: httpx.Client) -> Listing:
    """Chats that were gone on with the other way round: their ids are not the order of this list."""
    begun = several("/v1/responses", json={"input": "Hello"})(client).ids
    for first in reversed(begun):
        made(client, "/v1/responses", json={"input": "And?", "previous_response_id": first})
    return Listing("/v1/playground/chats", begun[::-1])


def named_rollouts(client: httpx.Client) -> Listing:
    names = [f"of-a-client-{number}" for number in (3, 1, 5, 2, 4)]  # whose order is not that of their making
    return Listing("/v1/rollouts", [made(client, "/v1/rollouts", json={"id": name}) for name in names])


def keys(client: httpx.Client) -> Listing:
    project = made(client, PROJECTS, json={"name": "of keys"})
    path = f"{PROJECTS}/{project}/service_accounts"
    return Listing(path, [made(client, path, json={"name": "k"}) for _ in range(COUNT)])


LISTS: dict[str, Callable[[httpx.Client], Listing]] = {
    "vector stores": several("/v1/vector_stores", "after", "before", json={}),
    "files": files,
    "files of a vector store": store_files,
    "files of a batch": batch_files,
    "items of a conversation": conversation_items,
    "skills": several("/v1/skills", files={"files": ("a.zip", zipped())}),
    "versions of a skill": versions,
    "webhook endpoints": several("/v1/webhook_endpoints", json=WEBHOOK),
    "roll-outs": several("/v1/rollouts", json={}),
    "named roll-outs": named_rollouts,
    "chat completions": several("/v1/chat/completions", json={"messages": HELLO, "store": True}),
    "chats of the playground": lambda client: Listing(
        "/v1/playground/chats", several("/v1/responses", json={"input": "Hello"})(client).ids
    ),
    "chats of several turns": long_chats,
    "keys": keys,
    "admin keys": several("/v1/organization/admin_api_keys", json={"name": "k"}),
}
NEWEST_FIRST = {"chats of the playground", "chats of several turns"}  # these lists have one order
BOTH_ENDS = {"vector stores", "files of a vector store", "files of a batch"}  # these take `before`


@dataclass(frozen=True)
class Lists:
    """A server, and clients of its projects."""

    server: ClosedServer
    clients: list[httpx.Client] = field(default_factory=list)

    def client(self, *flags: str) -> httpx.Client:
        """Return a client with a key of its own."""
        headers = bearer(self.server.new_key(*flags))
        return httpx.Client(base_url=self.server.url, headers=headers, verify=False, timeout=30)

    def made(self, name: str) -> tuple[httpx.Client, Listing]:
        """Return a list that nobody else has, with its client."""
        is_admins = name in ("keys", "admin keys")
        client = self.client("--admin") if is_admins else self.client("--project", f"project-{len(self.clients)}")
        self.clients.append(client)
        return client, LISTS[name](client)


@pytest.fixture(scope="module")
def lists(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lists]:
    with ClosedServer(tmp_path_factory.mktemp("listed"), auth="on") as server:
        lists = Lists(server)
        yield lists
        for client in lists.clients:
            client.close()


def every(client: httpx.Client, listing: Listing, **query: object) -> list[str]:
    answer = client.get(listing.path, params={"limit": 100, **query})
    assert answer.status_code == 200, answer.text
    return [each["id"] for each in answer.json()["data"]]


def page(client: httpx.Client, listing: Listing, **query: object) -> list[str]:
    """Return those of a page that the test has made: there is a version, or an admin key, before them."""
    return [each for each in every(client, listing, **query) if each in listing.ids]


def delete(client: httpx.Client, listing: Listing, name: str) -> None:
    path = f"{listing.delete or listing.path}/{name}"
    if "/versions" in path:  # a version is deleted by its number
        path = f"{listing.path}/{listing.ids.index(name) + 2}"
    answer = client.delete(path)
    assert answer.status_code == 200, answer.text


@pytest.mark.each_database
@pytest.mark.parametrize("name", LISTS)
def test_a_list_can_be_emptied_while_it_is_read(lists: Lists, name: str) -> None:
    for order in ("desc",) if name in NEWEST_FIRST else ("asc", "desc"):
        client, listing = lists.made(name)
        seen, after = list[str](), None
        while found := every(client, listing, limit=AT_ONCE, order=order, **({"after": after} if after else {})):
            after = found[-1]
            for each in found:
                if each in listing.ids:
                    seen.append(each)
                    delete(client, listing, each)
        assert seen == (listing.ids if order == "asc" else listing.ids[::-1])
        assert page(client, listing) == []


@pytest.mark.each_database
@pytest.mark.parametrize("name", LISTS)
def test_a_deleted_cursor_is_the_place_where_it_stood(lists: Lists, name: str) -> None:
    client, listing = lists.made(name)
    gone = listing.ids[2]
    # Parts of the list around it, by cursors of both kinds and in both orders.
    asked = [{"order": order, cursor: gone} for order in ("asc", "desc") for cursor in listing.cursors]
    asked += [{**each, "limit": 1} for each in asked]
    asked = [each for each in asked if name not in NEWEST_FIRST or each["order"] == "desc"]
    before = [page(client, listing, **each) for each in asked]
    delete(client, listing, gone)
    assert [page(client, listing, **each) for each in asked] == before
    assert sorted({each for part in before for each in part}) == sorted(
        listing.ids[:2] if name in NEWEST_FIRST else [*listing.ids[:2], *listing.ids[3:]]
    )


def test_chats_that_are_found_go_on_behind_a_deleted_one(lists: Lists) -> None:
    client, listing = lists.made("chats of several turns")
    gone = listing.ids[2]
    assert page(client, listing, search="Hello", after=gone) == listing.ids[1::-1]
    delete(client, listing, gone)
    assert page(client, listing, search="Hello", after=gone) == listing.ids[1::-1]
    assert page(client, listing, order="up") == every(client, listing)  # no parameter of this list


@pytest.mark.parametrize("name", [name for name in LISTS if name not in BOTH_ENDS])
def test_a_list_that_takes_no_before_leaves_it_alone(lists: Lists, name: str) -> None:
    client, listing = lists.made(name)
    for before in (listing.ids[1], "x"):
        assert every(client, listing, limit=2, before=before) == every(client, listing, limit=2), before


@pytest.mark.parametrize("name", LISTS)
def test_what_is_no_id_of_a_list_is_refused_and_what_is_tells_nothing(lists: Lists, name: str) -> None:
    client, listing = lists.made(name)
    _, theirs = lists.made(name)  # another project's, or of another project's keys
    for cursor in listing.cursors:
        for wrong in ("x", "../x", "\0", "é", "resp_" + "z" * 32, "x" * 5000):
            answer = client.get(listing.path, params={cursor: wrong})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, cursor), wrong
        # Theirs came later than all of these, if there is such a thing at all.
        never = re.sub(r".{7}$", "0123456", theirs.ids[0])
        for name_of in (theirs.ids[0], never, f"{theirs.ids[0][:-32]}{'f' * 12}7{'f' * 19}"):
            if name != "named roll-outs" and name_of != "msg_mine" and ids.milliseconds_of(name_of):
                assert page(client, listing, order="desc", **{cursor: name_of}) == (
                    listing.ids[::-1] if cursor == "after" else []
                )
