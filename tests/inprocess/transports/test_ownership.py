"""Two projects, every id, every verb: what is another project's does not exist, and is not watched."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest

from responses_app.protocol.requests.create_fields import GenerationFields
from responses_app.protocol.requests.requests import CreateRequest
from responses_app.urls import urlpatterns
from tests.kit.batches import content_of, line
from tests.kit.clients import Frame, Socket
from tests.kit.closed import bearer
from tests.kit.inprocess import ClosedServer
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.skills import zipped

VERBS = ("GET", "POST", "DELETE", "PUT", "PATCH")
# Ids of what all projects share, or of what only admin keys see.
OWN_TO_NOBODY = {"model", "project_id", "api_key_id", "service_account_id", "key_id"}
# What names something in a create: the field, and what is to be said there of an id of another project.
REFERENCES: dict[str, Any] = {
    "previous_response_id": lambda theirs: {"previous_response_id": theirs.response_id},
    "conversation": lambda theirs: {"conversation": theirs.conversation_id},
    "input": lambda theirs: {"input": [{"type": "item_reference", "id": theirs.item_id}, *HELLO]},
}
HELLO = [{"role": "user", "content": "Hello"}]
UPLOAD = {"bytes": 1, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
WEBHOOK = {"name": "w", "url": "https://93.184.216.34/", "event_types": ["response.completed"]}
NAMES_NOTHING = {
    *GenerationFields.model_fields,
    *"background background_options held ignored renamed shows_server_calls structured_outputs".split(),
    *"cache_salt context_management enable_response_messages generate include input_json".split(),
    *"instructions max_output_tokens max_tool_calls metadata model multi_agent parallel_tool_calls".split(),
    *"previous_input_messages priority private prompt_cache_key prompt_cache_options".split(),
    *"prompt_cache_retention reasoning request_id safety_identifier service_tier size store stream".split(),
    *"stream_options return_token_ids text text_format tool_choice tools tools_json top_logprobs".split(),
    *("truncation", "user"),
}


@dataclass(frozen=True)
class Theirs:
    """What another project has: an id of every kind, and what it got sealed."""

    response_id: str
    conversation_id: str
    item_id: str
    conversation_item_id: str
    container_id: str
    uploaded_id: str
    upload_id: str
    vector_store_id: str
    file_batch_id: str
    batch_id: str
    message_batch_id: str
    completion_id: str
    prompt_id: str
    skill_id: str
    webhook_endpoint_id: str
    rollout_id: str
    reasoning: Frame
    compaction: Frame

    def named(self, parameter: str) -> str:
        """Return the id that stands in a path for this parameter."""
        others = {
            "item_id": self.conversation_item_id,
            "file_id": self.uploaded_id,  # or one of that container or store, which is not found before it
            "chat_id": self.response_id,
            "version": "1",
        }
        return others.get(parameter) or str(getattr(self, parameter))


@dataclass(frozen=True)
class Projects:
    """A server with two projects."""

    server: ClosedServer
    mine: httpx.Client
    others: httpx.Client
    key: str
    theirs: Theirs


@pytest.fixture(scope="module")
def projects(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Projects]:
    folder = tmp_path_factory.mktemp("owned")
    with ClosedServer(folder, auth="on") as server:
        keys = [server.new_key("--project", name) for name in ("mine", "others")]
        mine, others = (client_of(server, key) for key in keys)
        with mine, others:
            yield Projects(server, mine, others, keys[0], _made(others))


def client_of(server: ClosedServer, key: str) -> httpx.Client:
    """Return a client with this key."""
    return httpx.Client(base_url=server.url, headers=bearer(key), verify=False, timeout=30)


def _made(client: httpx.Client) -> Theirs:
    conversation = _post(client, "/v1/conversations", {"items": HELLO})
    listed = client.get(f"/v1/conversations/{conversation['id']}/items").json()
    asked = {"input": "Think.", "include": ["reasoning.encrypted_content"], "conversation": conversation["id"]}
    response = _post(client, "/v1/responses", asked)
    (reasoning,) = [item for item in response["output"] if item["type"] == "reasoning"]
    compacted = _post(client, "/v1/responses/compact", {"model": response["model"], "input": HELLO})
    uploaded_id = _uploaded(client)
    vector_store_id = _post(client, "/v1/vector_stores", {})["id"]
    batch = _post(client, f"/v1/vector_stores/{vector_store_id}/file_batches", {"file_ids": [uploaded_id]})
    return Theirs(
        response_id=response["id"],
        conversation_id=conversation["id"],
        item_id=response["output"][-1]["id"],
        conversation_item_id=listed["data"][0]["id"],
        container_id=_container(client),
        uploaded_id=uploaded_id,
        upload_id=_post(client, "/v1/uploads", UPLOAD)["id"],
        vector_store_id=vector_store_id,
        file_batch_id=batch["id"],
        batch_id=_batch(client),
        message_batch_id=_message_batch(client),
        completion_id=_post(client, "/v1/chat/completions", {"messages": HELLO, "store": True})["id"],
        prompt_id=_post(client, "/v1/playground/prompts", {"name": "a prompt", "setup": {}})["id"],
        skill_id=client.post("/v1/skills", files={"files": ("a.zip", zipped())}).json()["id"],
        webhook_endpoint_id=_post(client, "/v1/webhook_endpoints", WEBHOOK)["id"],
        rollout_id=_post(client, "/v1/rollouts", {})["id"],
        reasoning=reasoning,
        compaction=next(item for item in compacted["output"] if item["type"] == "compaction"),
    )


def _container(client: httpx.Client) -> str:
    """Return the id of a container; where this machine has no sandbox there can be none."""
    made = client.post("/v1/containers", json={"name": "c"})
    return str(made.json()["id"]) if made.status_code == 200 else f"cntr_{'1' * 32}"


def _uploaded(client: httpx.Client) -> str:
    made = client.post("/v1/files", files={"file": ("a.txt", b"text")}, data={"purpose": "user_data"})
    return str(made.json()["id"])


def _message_batch(client: httpx.Client) -> str:
    params = {"model": "demo", "max_tokens": 9, "messages": HELLO}
    asked = {"requests": [{"custom_id": "a", "params": params}]}
    made = client.post("/v1/messages/batches", json=asked, headers={"anthropic-version": "2023-06-01"})
    return str(made.json()["id"])


def _batch(client: httpx.Client) -> str:
    content = content_of([line("a", input="Hi")])
    made = client.post("/v1/files", files={"file": ("a.jsonl", content)}, data={"purpose": "batch"})
    asked = {"input_file_id": made.json()["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
    return str(_post(client, "/v1/batches", asked)["id"])


def _post(client: httpx.Client, path: str, body: Mapping[str, object]) -> Frame:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    made: Frame = answer.json()
    return made


def owned_paths() -> list[tuple[str, list[str]]]:
    """Return every path that has an id of something owned, as a pattern, and the parameters in it."""
    found = []
    for pattern in urlpatterns:
        regex = pattern.pattern.regex.pattern
        parameters = re.findall(r"\?P<(\w+)>", regex)
        if set(parameters) - OWN_TO_NOBODY:
            found.append((regex, parameters))
    return found


def path_of(regex: str, theirs: Theirs) -> str:
    """Return a pattern of the URL table as a path to what another project has."""
    regex = regex.replace("file_batches/(?P<batch_id>", "file_batches/(?P<file_batch_id>")
    path = re.sub(r"\(\?P<(\w+)>[^)]*\)", lambda match: theirs.named(match.group(1)), regex)
    return "/v1/" + path.removeprefix("^(?:v1/)?").removesuffix("$").removesuffix("/?")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("regex", "parameters"), owned_paths(), ids=lambda each: each if isinstance(each, str) else "")
def test_no_verb_reaches_what_is_another_projects(
    projects: Projects, regex: str, parameters: list[str], verb: str
) -> None:
    path = path_of(regex, projects.theirs)
    body = {"metadata": {}, "items": HELLO, "tool_call_id": "call_1", "output": "1"}
    if path.endswith("/reward"):
        body = {"reward": 1}
    for query in ("", "?stream=true"):
        query = f"?item_id={projects.theirs.conversation_item_id}" if verb == "DELETE" else query
        answer = projects.mine.request(verb, path + query, json=body if verb == "POST" else None)
        if answer.status_code == 405:
            assert verb not in answer.headers["allow"]
            continue
        assert answer.status_code == 404, (verb, path, answer.text)
        made_up = re.sub(r"([_-])[0-9a-f]{32}", r"\g<1>" + "0" * 32, path)
        same = projects.mine.request(verb, made_up + query, json=body if verb == "POST" else None)
        assert same.status_code == 404
        assert _without_ids(answer.text) == _without_ids(same.text), "it tells that there is such a thing"


def _without_ids(text: str) -> str:
    return re.sub(r"[_-][0-9a-f]{32}", "_…", text)


def test_nothing_of_it_was_changed(projects: Projects) -> None:
    theirs = projects.theirs
    assert projects.others.get(f"/v1/responses/{theirs.response_id}").status_code == 200
    items = projects.others.get(f"/v1/conversations/{theirs.conversation_id}/items").json()["data"]
    assert theirs.conversation_item_id in [item["id"] for item in items]
    assert projects.others.get(f"/v1/files/{theirs.uploaded_id}/content").content == b"text"
    assert projects.mine.get("/v1/files").json()["data"] == []
    prompts = projects.others.get("/v1/playground/prompts").json()["data"]
    assert [each["id"] for each in prompts] == [theirs.prompt_id]
    listed = projects.others.get("/v1/chat/completions").json()["data"]
    assert [each["id"] for each in listed] == [theirs.completion_id]
    assert projects.mine.get("/v1/chat/completions").json()["data"] == []


def test_every_field_that_may_name_something_is_known_here() -> None:
    """A new field belongs to REFERENCES if it names what is kept, else to NAMES_NOTHING."""
    assert set(CreateRequest.model_fields) == {*REFERENCES, *NAMES_NOTHING}


@pytest.mark.parametrize("field", REFERENCES)
@pytest.mark.parametrize("where", ["/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"])
def test_no_reference_reaches_it_over_http(projects: Projects, field: str, where: str) -> None:
    named = REFERENCES[field](projects.theirs)
    answer = projects.mine.post(where, json={"model": "demo", "input": HELLO, **named})
    if answer.json()["error"]["code"] == "unsupported_parameter":
        assert (field, where) == ("conversation", "/v1/responses/compact")
    else:
        _assert_unknown(answer.status_code, answer.json()["error"])


@pytest.mark.parametrize("field", REFERENCES)
async def test_no_reference_reaches_it_over_the_websocket(projects: Projects, field: str) -> None:
    named = REFERENCES[field](projects.theirs)
    async with await Socket.open(projects.server.ws_url, additional_headers=bearer(projects.key)) as socket:
        await socket.send({"type": "response.create", "input": HELLO, **named})
        error = await socket.receive()
        _assert_unknown(error["status"], error["error"])


def skill(theirs: Theirs, **version: str) -> Frame:
    return {"skills": [{"type": "skill_reference", "skill_id": theirs.skill_id, **version}]}


BEGINS_WITH: dict[str, Callable[[Theirs], Frame]] = {  # what a container may begin with
    "a file": lambda theirs: {"file_ids": [theirs.uploaded_id]},
    "a skill": skill,
    "a version of a skill": partial(skill, version="1"),
    "the latest version": partial(skill, version="latest"),
}


@needs_bubblewrap
@pytest.mark.parametrize("named", BEGINS_WITH)
def test_no_container_begins_with_what_is_another_projects(projects: Projects, named: str) -> None:
    fields = BEGINS_WITH[named](projects.theirs)
    tools = [{"type": "code_interpreter", "container": {"type": "auto", **fields}}]
    assert_tools_are_theirs(projects, tools)
    answer = projects.mine.post("/v1/containers", json={"name": "c", **fields})
    _assert_unknown(answer.status_code, answer.json()["error"])


@needs_bubblewrap
def test_no_tool_reaches_a_container_of_another_project(projects: Projects) -> None:
    assert_tools_are_theirs(projects, [{"type": "code_interpreter", "container": projects.theirs.container_id}])


def assert_tools_are_theirs(projects: Projects, tools: list[Frame]) -> None:
    """Check that tools name what is not found for one project, and is for the other."""
    for where in ("/v1/responses", "/v1/responses/input_tokens"):
        asked = {"model": "demo", "input": HELLO, "tools": tools}
        answer = projects.mine.post(where, json=asked)
        _assert_unknown(answer.status_code, answer.json()["error"])
        assert projects.others.post(where, json=asked).status_code == 200


@pytest.mark.each_database
def test_no_search_reaches_a_vector_store_or_a_file_of_another_project(projects: Projects) -> None:
    assert_tools_are_theirs(projects, [{"type": "file_search", "vector_store_ids": [projects.theirs.vector_store_id]}])
    own = _post(projects.mine, "/v1/vector_stores", {})["id"]
    uploaded = projects.theirs.uploaded_id
    for path, body in (
        ("", {"file_ids": [uploaded]}),
        (f"/{own}/files", {"file_id": uploaded}),
        (f"/{own}/file_batches", {"file_ids": [uploaded]}),
        (f"/{own}/file_batches", {"files": [{"file_id": uploaded}]}),
    ):
        answer = projects.mine.post(f"/v1/vector_stores{path}", json=body)
        _assert_unknown(answer.status_code, answer.json()["error"])


@pytest.mark.parametrize("kind", ["response.steer", "response.interrupt", "response.cancel"])
async def test_nothing_can_be_said_to_it(projects: Projects, kind: str) -> None:
    async with await Socket.open(projects.server.ws_url, additional_headers=bearer(projects.key)) as socket:
        frame = {"type": kind, "response_id": projects.theirs.response_id, "input": HELLO}
        await socket.send(frame)
        answers = await socket.receive()
        await socket.send({**frame, "response_id": "resp_" + "0" * 32})
        same = await socket.receive()
        answers.pop("steer_id", None), same.pop("steer_id", None)
        assert _without_ids(str(answers)) == _without_ids(str(same))


@pytest.mark.parametrize("kind", ["reasoning", "compaction"])
def test_what_another_project_got_sealed_opens_for_it_alone(projects: Projects, kind: str) -> None:
    sealed = getattr(projects.theirs, kind)
    asked = {"input": [*HELLO, sealed, {"role": "user", "content": "Go on."}], "store": False}
    assert projects.others.post("/v1/responses", json=asked).status_code == 200
    answer = projects.mine.post("/v1/responses", json=asked)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_encrypted_content"


def test_items_can_be_named_in_no_conversation_of_another_project(projects: Projects) -> None:
    own = _post(projects.mine, "/v1/conversations", {})["id"]
    named = {"items": [{"type": "item_reference", "id": projects.theirs.item_id}]}
    for path in ("/v1/conversations", f"/v1/conversations/{own}/items"):
        answer = projects.mine.post(path, json=named)
        assert answer.status_code in (400, 404), answer.text
        _assert_unknown(answer.status_code, answer.json()["error"])


def _assert_unknown(status: int, error: Mapping[str, Any]) -> None:
    assert status in (400, 404), error
    assert "not found" in error["message"].lower(), error


@pytest.mark.each_database
def test_an_idempotency_key_is_one_of_its_project(projects: Projects) -> None:
    ids = []
    for client in (projects.mine, projects.others, projects.mine):
        answer = client.post("/v1/responses", json={"input": "Hello"}, headers={"Idempotency-Key": "the same"})
        assert answer.status_code == 200
        ids.append(answer.json()["id"])
    assert ids[0] == ids[2] != ids[1]


def test_no_batch_reads_a_file_of_another_project(projects: Projects) -> None:
    asked = {"input_file_id": projects.theirs.uploaded_id, "endpoint": "/v1/responses", "completion_window": "24h"}
    answer = projects.mine.post("/v1/batches", json=asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "input_file_id")
    assert projects.mine.get("/v1/batches").json()["data"] == []


def test_keys_of_other_projects_find_nothing(closed: ClosedServer) -> None:
    mine, other = (bearer(closed.new_key("--project", name)) for name in ("watching", "watching-2"))
    made = httpx.post(f"{closed.base_url}/responses", json={"model": "m", "input": "Hi"}, headers=mine, timeout=60)
    response_id = made.json()["id"]
    path = f"{closed.url}/watch/responses/{response_id}"
    assert httpx.get(f"{path}.json", headers=mine, timeout=60).json()["status"] == "completed"
    page = httpx.get(path, headers=mine, timeout=60).text
    assert all(part in page for part in ("Phases as a table", "Input items as JSON"))
    assert "/admin/responses_app/" not in page
    both = f"{closed.url}/watch/compare?left={response_id}&right={response_id}"
    for url in (f"{path}.json", path, both):
        answer = httpx.get(url, headers=other, timeout=60)
        assert (answer.status_code, "Hi" in answer.text) == (404, False)
    assert httpx.get(f"{path}.json", timeout=60).status_code == 401
    for url in (path, both):
        answer = httpx.get(url, timeout=60)
        assert (answer.status_code, answer.headers["location"].startswith("/admin/login/?next=")) == (302, True)
    narrow = bearer(closed.new_key("--project", "watching", "--scopes", "api.model.read"))
    assert httpx.get(f"{path}.json", headers=narrow, timeout=60).status_code == 403


def test_roll_outs_are_found_by_their_own_project(closed: ClosedServer) -> None:
    mine, other = (bearer(closed.new_key("--project", name)) for name in ("rolling", "rolling-2"))
    asked = {"model": "m", "input": "Hi there"}
    for name in ("w1", "w2"):
        headers = {**mine, "x-rollout-id": name}
        httpx.post(f"{closed.base_url}/responses", json=asked, headers=headers, timeout=60).raise_for_status()
    httpx.post(f"{closed.base_url}/rollouts", json={"id": "o1", "group": "g"}, headers=other, timeout=60)
    httpx.post(f"{closed.base_url}/rollouts", json={"id": "m1", "group": "g"}, headers=mine, timeout=60)
    base = f"{closed.url}/watch/rollouts"
    page = httpx.get(f"{base}/w1?g=0", headers=mine, timeout=60)
    assert (page.status_code, "Hi" in page.text, "project=" in page.text) == (200, True, False)
    for url in (f"{base}/w1", f"{base}/w1?g=0&part=tokens", f"{base}/w1?with=w2", f"{base}/o1?with=w1"):
        answer = httpx.get(url, headers=other, timeout=60)
        assert (answer.status_code, "Hi" in answer.text) == (404, False)
        assert httpx.get(f"{url}&project=rolling", headers=other, timeout=60).status_code == 404
        anybody = httpx.get(url, timeout=60)
        assert (anybody.status_code, anybody.headers["location"].startswith("/admin/login/?next=")) == (302, True)
    for headers, shown, hidden in ((mine, "m1", "o1"), (other, "o1", "m1")):
        for query in ("", "?group=g", "?group=g&project=rolling", f"?name={hidden}"):
            text = httpx.get(f"{base}{query}", headers=headers, timeout=60).text
            assert f"/watch/rollouts/{hidden}" not in text
            assert (f"/watch/rollouts/{shown}" in text) == ("name" not in query)
    narrow = bearer(closed.new_key("--project", "rolling", "--scopes", "api.model.read"))
    assert httpx.get(f"{base}/w1", headers=narrow, timeout=60).status_code == 403
