"""`/v1/playground/chats` of a server that asks who comes: who sees which chats, and what may be done with them."""

import html
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from tests.kit.clients import Frame
from tests.kit.closed import bearer
from tests.kit.fixtures import module_server
from tests.kit.inprocess import ClosedServer
from tests.kit.people import PASSWORD, in_the_database, log_in
from tests.kit.pictures import data_url, picture
from tests.kit.stored import stored

CLERK = f"""
from django.contrib.auth.models import Permission
clerk = User.objects.create_user("clerk", password={PASSWORD!r}, is_staff=True)
clerk.user_permissions.set(Permission.objects.filter(codename__in=["add_response", "see_content"]))
"""
PASS = {"Respsite-Session": "default"}
CHATS, PROMPTS = "/playground/chats", "/playground/prompts"


server = module_server("kept", ClosedServer, auth="on", engine_options={"tokens_per_second": 400})


@pytest.fixture(scope="module")
def _made(server: ClosedServer) -> list[str]:
    names = ("mine", "theirs", "reads", "elsewhere")
    made = [
        server.new_key("--project", "other" if name == "elsewhere" else "atlas", "--name", name) for name in names[:2]
    ]
    made.append(server.new_key("--project", "atlas", "--name", "reads", "--scope", "api.responses.read"))
    return [*made, server.new_key("--project", "other", "--name", "elsewhere")]


@pytest.fixture
def keys(server: ClosedServer, _made: list[str]) -> Iterator[list[httpx.Client]]:
    """Clients by four keys: two of a project, one of it that may only read, and one of another project."""
    clients = [httpx.Client(base_url=server.base_url, headers=bearer(key), verify=False, timeout=30) for key in _made]
    yield clients
    for client in clients:
        for chat in client.get(CHATS).json()["data"]:
            client.delete(f"{CHATS}/{chat['id']}")
        client.close()


def nested(levels: int) -> Any:
    """Return objects in objects."""
    return {"a": nested(levels - 1)} if levels else {}


def ask(client: httpx.Client, text: object, **fields: Any) -> Frame:
    """Create a response."""
    answer = client.post("/responses", json={"input": text, **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def chats(client: httpx.Client, **query: Any) -> list[Frame]:
    """Return the listed chats."""
    answer = client.get(CHATS, params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"])


def refused(answer: httpx.Response) -> tuple[int, str | None, str | None]:
    """Return how a request was refused."""
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def test_a_chat_is_listed_read_changed_and_deleted(keys: list[httpx.Client]) -> None:
    client = keys[0]
    first = ask(client, "repeat: What is a turtle?", instructions="Be brief.", temperature=0.5)
    second = ask(client, "repeat: two", previous_response_id=first["id"], metadata={"a": "b"})
    fork = ask(client, "repeat: three", previous_response_id=first["id"], instructions="Be long.", temperature=0.25)
    ask(client, "repeat: not kept", store=False)
    page = client.get(CHATS).json()
    [chat] = page["data"]
    assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == (
        "list", first["id"], first["id"], False,
    )  # fmt: skip
    assert chat == {
        "id": first["id"], "object": "playground.chat", "title": "repeat: What is a turtle?", "title_from": "words",
        "pinned": False, "model": first["model"], "created_at": first["created_at"],
        "updated_at": fork["created_at"], "response_id": fork["id"], "responses": 3, "read_only": False,
    }  # fmt: skip
    whole = client.get(f"{CHATS}/{second['id']}").json()
    turns, request = whole.pop("turns"), whole.pop("request")
    assert whole == {**chat, "more": False}
    assert [(turn["id"], turn["previous_response_id"]) for turn in turns] == [
        (first["id"], None), (second["id"], first["id"]), (fork["id"], first["id"]),
    ]  # fmt: skip
    assert turns[1]["output"] == second["output"]
    assert turns[1]["usage"] == second["usage"]
    assert turns[1]["metadata"] == {"a": "b"}
    assert turns[1]["input"][0]["content"][0]["text"] == "repeat: two"
    assert (request["model"], request["instructions"], request["temperature"]) == (first["model"], "Be long.", 0.25)
    changed = client.post(f"{CHATS}/{second['id']}", json={"title": " Turtles \n 🐢 ", "pinned": True}).json()
    assert changed == {**chat, "title": "Turtles 🐢", "title_from": "person", "pinned": True}
    assert chats(client) == [changed]
    gone = client.delete(f"{CHATS}/{fork['id']}").json()
    assert gone == {"id": first["id"], "object": "playground.chat.deleted", "deleted": True, "responses": 3}
    assert chats(client) == []
    assert client.get(f"/responses/{second['id']}").status_code == 404
    assert refused(client.get(f"{CHATS}/{first['id']}")) == (404, "chat_not_found", None)
    assert refused(client.delete(f"{CHATS}/{first['id']}")) == (404, "chat_not_found", None)


def test_pictures_of_the_input_are_shown(keys: list[httpx.Client]) -> None:
    url = data_url(picture())
    parts = [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": url}]
    made = ask(keys[0], [{"role": "user", "content": parts}])
    [turn] = keys[0].get(f"{CHATS}/{made['id']}").json()["turns"]
    assert turn["input"][0]["content"][1]["image_url"] == url


def test_a_conversation_is_a_chat(keys: list[httpx.Client]) -> None:
    client = keys[0]
    name = client.post("/conversations", json={}).json()["id"]
    made = [ask(client, f"repeat: {number}", conversation=name)["id"] for number in range(2)]
    [chat] = chats(client)
    assert (chat["id"], chat["title"], chat["responses"], chat["response_id"]) == (name, "repeat: 0", 2, made[1])
    turns = client.get(f"{CHATS}/{name}").json()["turns"]
    assert [(turn["id"], turn["previous_response_id"]) for turn in turns] == [(made[0], None), (made[1], made[0])]
    assert client.delete(f"{CHATS}/{name}").json()["responses"] == 2
    assert client.get(f"/conversations/{name}").status_code == 200, "its items are the API's"


def test_what_runs_is_in_its_chat_and_goes_with_it(keys: list[httpx.Client]) -> None:
    client = keys[0]
    first = ask(client, "repeat: one")
    running = ask(client, "count to 100000", previous_response_id=first["id"], background=True)
    [chat] = chats(client)
    assert (chat["id"], chat["response_id"], chat["responses"]) == (first["id"], running["id"], 2)
    turns = client.get(f"{CHATS}/{chat['id']}").json()["turns"]
    assert turns[1]["status"] in ("queued", "in_progress")
    assert turns[1]["previous_response_id"] == first["id"]
    assert client.delete(f"{CHATS}/{chat['id']}").json()["responses"] == 2
    assert client.get(f"/responses/{running['id']}").status_code == 404
    assert chats(client) == []


def test_legs_of_a_turn_follow_each_other(keys: list[httpx.Client]) -> None:
    client = keys[0]
    client.headers["respsite-dialect"] = "codex-turn"
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    first = ask(client, "call get_weather for Paris", tools=[tool])
    output = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "18"}
    second = ask(client, [output], tools=[tool], previous_response_id=first["id"])
    assert second["id"] == first["id"]
    ask(client, "repeat: thanks", previous_response_id=first["id"])
    [chat] = chats(client)
    turns = client.get(f"{CHATS}/{first['id']}").json()["turns"]
    assert chat["responses"] == 3
    assert [turn["previous_response_id"] for turn in turns] == [None, turns[0]["id"], turns[1]["id"]]
    assert client.delete(f"{CHATS}/{first['id']}").json()["responses"] == 3


def test_each_key_and_project_has_its_own(keys: list[httpx.Client]) -> None:
    mine, theirs, reads, elsewhere = keys
    made = ask(mine, "repeat: mine")
    assert [chats(each) for each in keys[1:]] == [[], [], []]
    for client in (theirs, reads, elsewhere):
        assert refused(client.get(f"{CHATS}/{made['id']}")) == (404, "chat_not_found", None)
    for client in (theirs, elsewhere):
        assert refused(client.post(f"{CHATS}/{made['id']}", json={"pinned": True})) == (404, "chat_not_found", None)
        assert refused(client.delete(f"{CHATS}/{made['id']}")) == (404, "chat_not_found", None)
    assert refused(reads.delete(f"{CHATS}/{made['id']}"))[:2] == (403, "missing_scope")
    assert refused(reads.post(f"{CHATS}/{made['id']}", json={}))[:2] == (403, "missing_scope")
    joined = ask(theirs, "repeat: both", previous_response_id=made["id"])
    assert [chat["response_id"] for chat in chats(mine)] == [joined["id"]]
    assert [chat["response_id"] for chat in chats(theirs)] == [joined["id"]]


def test_each_user_of_the_admin_has_his_own(server: ClosedServer) -> None:
    in_the_database(server, CLERK)
    with closing(log_in(server)) as root, closing(log_in(server, "clerk")) as clerk:
        for browser in (root, clerk):
            browser.base_url, browser.headers = server.base_url, {**browser.headers, **PASS}  # type: ignore[assignment]
        made = ask(root, "repeat: mine")
        assert [chat["id"] for chat in chats(root)] == [made["id"]]
        assert chats(clerk) == []
        assert refused(clerk.get(f"{CHATS}/{made['id']}"))[0] == 404
        assert root.delete(f"{CHATS}/{made['id']}").json()["deleted"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"title": 1}, "title"),
        ({"title": "x" * 201}, "title"),
        ({"title_from": "person"}, "title"),
        ({"title": "a", "title_from": "god"}, "title_from"),
        ({"pinned": "yes"}, "pinned"),
    ],
)
def test_what_cannot_be_set(keys: list[httpx.Client], body: Frame, param: str) -> None:
    made = ask(keys[0], "repeat: one")
    assert refused(keys[0].post(f"{CHATS}/{made['id']}", json=body))[::2] == (400, param)


def test_prompts(keys: list[httpx.Client]) -> None:
    mine, theirs, reads, elsewhere = keys
    setup = {"model": "demo", "instructions": "Be brief. 🐢", "tools": []}
    made = mine.post(PROMPTS, json={"name": "  My \n setup ", "setup": setup}).json()
    about = {"id": made["id"], "object": "playground.prompt", "name": "My setup", "setup": setup}
    assert made == {**about, "created_at": made["created_at"], "updated_at": made["created_at"]}
    assert made["id"].startswith("pmpt_")
    again = theirs.post(PROMPTS, json={"name": "My setup", "setup": {}}).json()
    assert (again["id"], again["setup"]) == (made["id"], {})
    for client in (mine, theirs, reads):
        page = client.get(PROMPTS).json()
        assert page == {
            "object": "list", "data": [again], "first_id": made["id"], "last_id": made["id"], "has_more": False,
        }  # fmt: skip
    assert elsewhere.get(PROMPTS).json()["data"] == []
    assert refused(elsewhere.delete(f"{PROMPTS}/{made['id']}")) == (404, "prompt_not_found", None)
    assert refused(reads.post(PROMPTS, json={"name": "a", "setup": {}}))[:2] == (403, "missing_scope")
    assert refused(reads.delete(f"{PROMPTS}/{made['id']}"))[:2] == (403, "missing_scope")
    gone = {"id": made["id"], "object": "playground.prompt.deleted", "deleted": True}
    assert theirs.delete(f"{PROMPTS}/{made['id']}").json() == gone
    assert refused(mine.delete(f"{PROMPTS}/{made['id']}"))[0] == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"setup": {}}, "name"),
        ({"name": " \n", "setup": {}}, "name"),
        ({"name": "x" * 101, "setup": {}}, "name"),
        ({"name": "a\0", "setup": {}}, "name"),
        ({"name": "a"}, "setup"),
        ({"name": "a", "setup": []}, "setup"),
        ({"name": "a", "setup": {"instructions": "é" * (128 << 10)}}, "setup"),
        ({"name": "a", "setup": nested(252)}, "setup.a.a"),
        ({"name": "a", "setup": nested(600)}, "setup.a.a"),
    ],
    ids=lambda each: str(each)[:20].encode("unicode_escape").decode(),
)
def test_what_is_no_prompt(keys: list[httpx.Client], body: Frame, param: str) -> None:
    answer = keys[0].post(PROMPTS, content=json.dumps(body), headers={"content-type": "application/json"})
    assert refused(answer)[::2] == (400, param)
    assert keys[0].get(PROMPTS).json()["data"] == []  # one that cannot be written would spoil the list for all


def test_search(keys: list[httpx.Client]) -> None:
    mine, theirs, *_ = keys
    made = [ask(mine, f"repeat: {word}")["id"] for word in ("Größe 100%", "Ελλάδα", 'a "quoted" text')]
    for text, found in (("größe", 0), ("100%", 0), ("ελλάδα", 1), ('"QUOTED"', 2)):
        assert [chat["id"] for chat in chats(mine, search=text)] == [made[found]], text
    assert [chat["id"] for chat in chats(mine, search=" ")] == made[::-1]
    assert chats(mine, search="input_text") == []
    assert chats(theirs, search="größe") == []


def test_a_project_is_forgotten_with_its_titles_and_prompts(server: ClosedServer) -> None:
    key = server.new_key("--project", "gone")
    with httpx.Client(base_url=server.base_url, headers=bearer(key), verify=False, timeout=30) as client:
        made = ask(client, "repeat: one")
        client.post(f"{CHATS}/{made['id']}", json={"title": "A title to forget"})
        client.post(PROMPTS, json={"name": "A setup to forget", "setup": {"a": "b"}})
    told = server.folder / "gone.jsonl"
    server.operate("forget", "--project", "gone", "--export", str(told), "--yes")
    assert "A title to forget" in told.read_text()
    assert "A setup to forget" in told.read_text()
    for table in ("chatlabel", "namedsetup"):
        assert stored(server, f"SELECT id FROM responses_app_{table} WHERE project = 'gone'") == []


shared = module_server("shared", ClosedServer, auth="on", playground_sharing="on")


@pytest.mark.parametrize(("which", "sharing"), [("server", False), ("shared", True)])
def test_the_page_knows_whether_chats_are_shared(which: str, sharing: bool, request: pytest.FixtureRequest) -> None:
    page = httpx.get(request.getfixturevalue(which).url, headers={"accept": "text/html"}, verify=False)
    told = html.unescape(page.text)
    assert f'"sharing": {json.dumps(sharing)}' in told
    assert '"kept": true' in told


def test_a_chat_is_shared_within_its_project(shared: ClosedServer) -> None:
    mine, theirs, elsewhere = (
        httpx.Client(base_url=shared.base_url, headers=bearer(key), verify=False, timeout=30)
        for key in (shared.new_key("--project", name) for name in ("atlas", "atlas", "other"))
    )
    made = ask(mine, "repeat: shared")
    whole = mine.get(f"{CHATS}/{made['id']}").json()
    assert whole["read_only"] is False
    assert theirs.get(f"{CHATS}/{made['id']}").json() == {**whole, "read_only": True}
    assert chats(theirs) == []
    for answer in (
        elsewhere.get(f"{CHATS}/{made['id']}"),
        theirs.post(f"{CHATS}/{made['id']}", json={"title": "Mine"}),
        theirs.delete(f"{CHATS}/{made['id']}"),
    ):
        assert refused(answer) == (404, "chat_not_found", None)
    for client in (mine, theirs, elsewhere):
        client.close()


def test_pages(keys: list[httpx.Client]) -> None:
    made = [ask(keys[0], f"repeat: {number}")["id"] for number in range(3)][::-1]
    page = keys[0].get(CHATS, params={"limit": 2}).json()
    assert ([chat["id"] for chat in page["data"]], page["has_more"]) == (made[:2], True)
    page = keys[0].get(CHATS, params={"limit": 2, "after": page["last_id"]}).json()
    assert ([chat["id"] for chat in page["data"]], page["has_more"]) == (made[2:], False)
    assert refused(keys[0].get(CHATS, params={"after": "resp_nope"}))[::2] == (400, "after")
    assert refused(keys[0].get(CHATS, params={"search": "x" * 201}))[::2] == (400, "search")
