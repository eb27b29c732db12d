"""What a request names needs the scope of what it names, by whichever way the request comes in."""

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from tests.kit.clients import Socket
from tests.kit.closed import bearer
from tests.kit.inprocess import ClosedServer
from tests.kit.sandboxes import needs_bubblewrap

ABSENT = "0" * 32  # ids need not exist: who may not read files is not told which ones there are
FILE = {"type": "input_file", "file_id": f"file-{ABSENT}"}
IMAGE = {"type": "input_image", "file_id": f"file-{ABSENT}", "detail": "auto"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def said(*parts: Mapping[str, object]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def tool(**fields: object) -> dict[str, Any]:
    return {"input": "Hello", "tools": [fields]}


def code_in(**container: object) -> dict[str, Any]:
    return tool(type="code_interpreter", container={"type": "auto", **container})


QUESTION = {"type": "input_text", "text": "?"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": [FILE]}
SCREENSHOT = {"type": "computer_screenshot", "file_id": "file-1"}
SEEN = {"type": "computer_call_output", "call_id": "c", "output": SCREENSHOT}
RAN = {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "container_id": f"cntr_{ABSENT}"}
SKILL = {"type": "skill_reference", "skill_id": f"skill_{ABSENT}"}
ITEM = {"type": "item_reference", "id": f"msg_{ABSENT}"}
FILES, SKILLS, VECTOR_STORES = ("api.files.read",), ("api.skills.read",), ("api.vector_stores.read",)
CONTAINERS = ("api.containers.read", "api.containers.write")
CONVERSATIONS = ("api.conversations.read", "api.conversations.write")
# What a create names, where it stands, and the scopes that are asked for.
NAMED: Mapping[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "a file": ({"input": [said(FILE)]}, "input[0].content[0].file_id", FILES),
    "an image": ({"input": [said(QUESTION, IMAGE)]}, "input[0].content[1].file_id", FILES),
    "a file of an output": ({"input": [CALL, OUTPUT]}, "input[1].output[0].file_id", FILES),
    "a screenshot": ({"input": [SEEN]}, "input[0].output.file_id", FILES),
    "files for code": (code_in(file_ids=["file-1", "file-2"]), "tools[0].container.file_ids", FILES),
    "a container": (tool(type="code_interpreter", container=f"cntr_{ABSENT}"), "tools[0].container", CONTAINERS),
    "a container of a history": ({**code_in(), "input": [RAN, said(QUESTION)]}, "input[0].container_id", CONTAINERS),
    "a vector store": (
        tool(type="file_search", vector_store_ids=[f"vs_{ABSENT}"]),
        "tools[0].vector_store_ids",
        VECTOR_STORES,
    ),
    "a skill": (code_in(skills=[SKILL]), "tools[0].container.skills", SKILLS),
    "a mask": (
        tool(type="image_generation", input_image_mask={"file_id": "file-1"}),
        "tools[0].input_image_mask.file_id",
        FILES,
    ),
    "a conversation": ({"input": "Hello", "conversation": f"conv_{ABSENT}"}, "conversation", CONVERSATIONS),
    "an item of a conversation": ({"input": [ITEM]}, "input[0].id", CONVERSATIONS[:1]),
}
EVERYTHING_ELSE = "api.responses.write,api.responses.read,api.model.read,api.embeddings.write"


@pytest.fixture
def writer(closed: ClosedServer) -> str:
    """A key for all but what requests name."""
    return key_with(closed, EVERYTHING_ELSE)


_keys: dict[tuple[str, str], str] = {}


def key_with(server: ClosedServer, scopes: str) -> str:
    if (server.url, scopes) not in _keys:
        _keys[server.url, scopes] = server.new_key("--scopes", scopes)
    return _keys[server.url, scopes]


def sent(server: ClosedServer, key: str, path: str, body: Mapping[str, object]) -> httpx.Response:
    return httpx.post(f"{server.base_url}/{path}", json=body, headers=bearer(key), verify=False, timeout=30)


def assert_missing(answer: httpx.Response, scopes: tuple[str, ...], param: str) -> None:
    assert answer.status_code == 403, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["type"], error["param"]) == ("missing_scope", "permission_error", param)
    assert f"Missing scopes: {', '.join(scopes)}." in error["message"]
    assert f"'{param}'" in error["message"]


@pytest.mark.parametrize("name", NAMED)
def test_what_a_create_names_needs_its_scope(closed: ClosedServer, writer: str, name: str) -> None:
    body, param, scopes = NAMED[name]
    for way in ({}, {"stream": True}, {"background": True}):
        assert_missing(sent(closed, writer, "responses", {**body, **way}), scopes, param)
    reads = tuple(scope for scope in scopes if scope.endswith(".read"))
    assert_missing(sent(closed, writer, "responses/input_tokens", body), reads, param)
    may = key_with(closed, ",".join((EVERYTHING_ELSE, *scopes)))
    assert sent(closed, may, "responses", body).status_code != 403


@pytest.mark.parametrize("name", NAMED)
async def test_what_a_frame_names_needs_its_scope(closed: ClosedServer, writer: str, name: str) -> None:
    body, param, scopes = NAMED[name]
    async with await Socket.open(closed.ws_url, additional_headers=bearer(writer)) as socket:
        await socket.send({"type": "response.create", **body})
        frame = await socket.receive()
        assert (frame["type"], frame["status"], frame["error"]["code"]) == ("error", 403, "missing_scope")
        assert frame["error"]["param"] == param
        assert f"Missing scopes: {', '.join(scopes)}." in frame["error"]["message"]
        await socket.send({"type": "response.create", "input": "Hello"})  # the connection goes on
        await socket.until("response.completed")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("responses", {"input": "Hello"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
        ("completions", {"prompt": "Hello"}),
        ("messages", {"max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}),
    ],
)
def test_what_is_recorded_for_a_roll_out_needs_its_scope(
    closed: ClosedServer, writer: str, path: str, body: Mapping[str, Any]
) -> None:
    def answer(key: str, **changed: object) -> httpx.Response:
        below = "" if changed else "/rollouts/r-scopes"
        url = f"{closed.base_url.removesuffix('/v1')}{below}/v1/{path}"
        headers = {**bearer(key), **({"anthropic-version": "2023-06-01"} if path == "messages" else {})}
        return httpx.post(url, json={**body, **changed}, headers=headers, verify=False, timeout=30)

    models = httpx.get(f"{closed.base_url}/models", headers=bearer(writer), verify=False, timeout=30).json()["data"]
    body = {"model": models[0]["id"], **body}
    ways: list[dict[str, object]] = [{}]
    if path != "messages":  # its metadata is the user's id alone
        ways.append({"metadata": {"rollout_id": "r-scopes"}})
    may = key_with(closed, f"{EVERYTHING_ELSE},api.rollouts.write")
    for way in ways:
        refused = answer(writer, **way)
        assert refused.status_code == 403, refused.text
        assert "Missing scopes: api.rollouts.write." in refused.json()["error"]["message"]
        if path != "messages":
            assert refused.json()["error"]["param"] == ("metadata.rollout_id" if way else "x-rollout-id")
        assert answer(may, **way).status_code == 200
    assert answer(writer, metadata={}).status_code == 200, "without a roll-out nothing is asked for"


def test_chats_compactions_and_outputs_of_tools_name_files_too(closed: ClosedServer, writer: str) -> None:
    chat = {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}]}
    of_input = "input[0].content[0].file_id"
    for path, body, param in (
        ("chat/completions", chat, "messages[0].content[0].file_id"),
        ("chat/completions", {**chat, "stream": True}, "messages[0].content[0].file_id"),
        ("responses/compact", {"model": "m", "input": [said(FILE)]}, of_input),
        (f"responses/resp_{ABSENT}/tool_outputs", {"tool_call_id": "c", "output": [FILE]}, "output[0].file_id"),
    ):
        assert_missing(sent(closed, writer, path, body), FILES, param)


@pytest.mark.parametrize(
    ("path", "body", "scopes", "param"),
    [
        ("containers", {"name": "c", "file_ids": ["file-1"]}, FILES, "file_ids"),
        ("vector_stores", {"file_ids": ["file-1"]}, FILES, "file_ids[0]"),
        ("vector_stores/{vector_stores}/files", {"file_id": "file-1"}, FILES, "file_id"),
        ("vector_stores/{vector_stores}/file_batches", {"file_ids": ["file-1"]}, FILES, "file_ids[0]"),
        ("conversations", {"items": [said(FILE)]}, FILES, "items[0].content[0].file_id"),
        (f"conversations/conv_{ABSENT}/items", {"items": [said(FILE)]}, FILES, "items[0].content[0].file_id"),
        ("conversations", {"items": [ITEM]}, ("api.responses.read", "api.conversations.read"), "items[0].id"),
    ],
)
def test_what_other_resources_name_needs_its_scope(
    closed: ClosedServer, path: str, body: Mapping[str, object], scopes: tuple[str, ...], param: str
) -> None:
    writes = "api.containers.write,api.vector_stores.write,api.conversations.write"
    if "{" in path:
        resource = path.partition("/")[0]
        path = path.format(**{resource: sent(closed, key_with(closed, writes), resource, {}).json()["id"]})
    assert_missing(sent(closed, key_with(closed, writes), path, body), scopes, param)
    assert sent(closed, key_with(closed, ",".join((writes, *scopes))), path, body).status_code in (200, 400, 404)


@needs_bubblewrap
def test_a_file_is_copied_into_a_container_by_who_may_read_it(closed: ClosedServer) -> None:
    key = key_with(closed, "api.containers.write")
    made = sent(closed, key, "containers", {"name": "c"}).json()["id"]
    assert_missing(sent(closed, key, f"containers/{made}/files", {"file_id": "file-1"}), FILES, "file_id")


def test_responses_are_continued_with_the_scope_that_makes_them(closed: ClosedServer) -> None:
    """A key that may only write goes on with what it has made: a chain, and items by their ids."""
    key = key_with(closed, "api.responses.write")
    first = sent(closed, key, "responses", {"input": "Hello"}).json()
    assert sent(closed, key, "responses", {"input": "And?", "previous_response_id": first["id"]}).status_code == 200
    named = [{"type": "item_reference", "id": first["output"][-1]["id"]}, {"role": "user", "content": "And?"}]
    assert sent(closed, key, "responses", {"input": named}).status_code == 200


def item_of_conversation(closed: ClosedServer, item: Mapping[str, object]) -> str:
    """Return the id that an item has in a conversation."""
    made = sent(closed, closed.key, "conversations", {"items": [item]}).json()
    path = f"{closed.base_url}/conversations/{made['id']}/items"
    (kept,) = httpx.get(path, headers=bearer(closed.key), verify=False).json()["data"]
    return str(kept["id"])


def test_items_of_conversations_are_for_those_who_may_read_these(closed: ClosedServer, writer: str) -> None:
    item = item_of_conversation(closed, said({"type": "input_text", "text": "Hi"}))
    body = {"input": [{"type": "item_reference", "id": item}]}
    assert_missing(sent(closed, writer, "responses", body), CONVERSATIONS[:1], "input[0].id")
    may = key_with(closed, f"{EVERYTHING_ELSE},api.conversations.read")
    assert sent(closed, may, "responses", body).status_code == 200


def test_images_of_conversations_are_for_those_who_may_read_these(closed: ClosedServer, writer: str) -> None:
    """A call that made an image stands for it by its id alone: an edit may begin with it."""
    image = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aGk="}
    named = {**image, "id": item_of_conversation(closed, image), "result": None}
    body = {"input": [{"role": "user", "content": "Hello"}, named, {"role": "user", "content": "Brighter"}]}
    assert_missing(sent(closed, writer, "responses", body), CONVERSATIONS[:1], "input[1].id")
    may = key_with(closed, f"{EVERYTHING_ELSE},api.conversations.read")
    assert sent(closed, may, "responses", body).status_code == 200
    body["input"][1] = {**named, "result": "aGk="}  # the image itself
    assert sent(closed, writer, "responses", body).status_code == 200


def test_citations_in_a_replayed_history_name_nothing(closed: ClosedServer, writer: str) -> None:
    cited = {"type": "file_citation", "file_id": "file-1", "filename": "a.txt", "index": 0}
    answer = {"type": "output_text", "text": "It is blue.", "annotations": [cited]}
    history = [{"type": "message", "role": "assistant", "content": [answer]}, {"role": "user", "content": "Why?"}]
    assert sent(closed, writer, "responses", {"input": history}).status_code == 200


def test_a_key_without_scopes_may_name_everything(closed: ClosedServer) -> None:
    for body, _, _ in NAMED.values():
        answer = sent(closed, closed.key, "responses", body)
        assert answer.status_code != 403, json.dumps(body)
