"""The code interpreter through the SDK, as an agent's client uses it: the demo engine runs what it is told to."""

import contextlib
from typing import Any

import httpx
import openai
from openai import OpenAI

from tests.kit.fixtures import module_sdk, module_server
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.sdk import refusal
from tests.kit.server import Server

pytestmark = [needs_bubblewrap]

TOOL: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
ASKED: Any = {"model": "demo", "tools": [TOOL], "include": ["code_interpreter_call.outputs"]}


server = module_server("interpreter", sandbox_memory_bytes=256 * 1024 * 1024)


client = module_sdk()


def call_of(response: Any) -> Any:
    """Return the only call of the interpreter in a response."""
    (call,) = [item for item in response.output if item.type == "code_interpreter_call"]
    return call


def test_a_stream_has_the_events_of_openai(client: OpenAI) -> None:
    with client.responses.stream(input="python: 2**100", **ASKED) as stream:
        events = [event for event in stream if "code_interpreter" in event.type]
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    prefix = "response.code_interpreter_call"
    deltas = [kind for kind in kinds if kind == f"{prefix}_code.delta"]
    rest = [f"{prefix}_code.done", f"{prefix}.interpreting", f"{prefix}.completed"]
    assert kinds == [f"{prefix}.in_progress", *deltas, *rest]
    assert (call_of(final).code, call_of(final).outputs[0].logs) == ("2**100", f"{2**100}\n")
    assert events[-1].to_dict()["outputs"] == [{"type": "logs", "logs": f"{2**100}\n"}]
    without = client.responses.create(**{**ASKED, "include": []}, input="python: 1", stream=True)
    (completed,) = [event for event in without if event.type == f"{prefix}.completed"]
    assert "outputs" not in completed.to_dict()


def test_containers_and_their_files(client: OpenAI) -> None:
    made: Any = client.containers.create(name="mine", expires_after={"anchor": "last_active_at", "minutes": 5})
    assert (made.name, made.status, made.memory_limit) == ("mine", "running", "1g")
    assert made.expires_after.minutes == 5
    up = client.containers.files.create(made.id, file=("data.csv", b"a\n1\n2\n"))
    assert (up.path, up.bytes, up.source) == ("/mnt/data/data.csv", 6, "user")
    code = "python: rows = open('data.csv').read().split()[1:]\nopen('sum.txt', 'w').write(str(sum(map(int, rows))));"
    named = {**ASKED, "tools": [{"type": "code_interpreter", "container": made.id}]}
    assert call_of(client.responses.create(input=code, **named)).container_id == made.id
    files = {file.path: file for file in client.containers.files.list(made.id)}
    assert {path: file.source for path, file in files.items()} == {
        "/mnt/data/data.csv": "user",
        "/mnt/data/sum.txt": "assistant",
    }
    produced = files["/mnt/data/sum.txt"]
    assert client.containers.files.retrieve(produced.id, container_id=made.id).path == produced.path
    assert client.containers.files.content.retrieve(produced.id, container_id=made.id).read() == b"3"
    client.containers.files.delete(up.id, container_id=made.id)
    get = client.containers.files.retrieve
    refusal(openai.NotFoundError, get, up.id, container_id=made.id, match="not found in container")
    behind = client.containers.files.list(made.id, order="asc", after=up.id)  # which is gone, and still a place
    assert [each.id for each in behind] == [produced.id]
    assert made.id in [each.id for each in client.containers.list()]
    assert {each.name for each in client.containers.list(name="mine")} == {"mine"}
    assert not list(client.containers.list(name="nobody's"))
    assert client.containers.retrieve(made.id).id == made.id
    client.containers.delete(made.id)
    refusal(openai.NotFoundError, client.containers.retrieve, made.id, match="Container with id")
    assert made.id not in [each.id for each in client.containers.list(order="asc", after=made.id)]


def test_files_of_the_files_api_lie_in_a_container(client: OpenAI) -> None:
    one, other = (client.files.create(file=("data.csv", text), purpose="user_data") for text in (b"1", b"2"))
    tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [one.id, other.id]}}
    asked: Any = {**ASKED, "tools": [tool]}
    read = "python: open('data.csv').read() + open('data_2.csv').read()"
    first = client.responses.create(input=read, **asked)
    assert call_of(first).outputs[0].logs == "'12'\n"
    assert first.tools[0].model_dump(exclude_none=True) == tool
    client.files.delete(one.id)  # its copy stays
    changed = "python: open('data.csv', 'w').write('changed');"
    second = client.responses.create(input=changed, previous_response_id=first.id, **asked)
    third = client.responses.create(input=read, previous_response_id=second.id, **asked)
    assert call_of(third).outputs[0].logs == "'changed2'\n"
    gone = refusal(openai.NotFoundError, client.responses.create, input=read, **asked)
    assert (gone.param, one.id in gone.message) == ("tools[0].container.file_ids", True)


def test_a_container_is_made_with_files(client: OpenAI) -> None:
    file = client.files.create(file=("a.txt", b"text"), purpose="user_data")
    made = client.containers.create(name="x", file_ids=[file.id])
    assert [(each.path, each.source) for each in client.containers.files.list(made.id)] == [("/mnt/data/a.txt", "user")]
    empty = client.containers.create(name="y")
    copied = client.containers.files.create(empty.id, file_id=file.id)
    assert (copied.path, copied.bytes) == ("/mnt/data/a.txt", 4)
    assert client.containers.files.content.retrieve(copied.id, container_id=empty.id).read() == b"text"
    create = client.containers.create
    assert refusal(openai.NotFoundError, create, name="z", file_ids=["file-1"]).param == "file_ids"
    copy = client.containers.files.create
    assert refusal(openai.NotFoundError, copy, empty.id, file_id="file-1").param == "file_id"
    assert "z" not in [each.name for each in client.containers.list()]


def test_what_containers_do_not_take(server: Server, client: OpenAI) -> None:
    policy, off = {"type": "allowlist", "allowed_domains": ["a.example"]}, r"\(SANDBOX_NETWORK=off\)"
    for name, wrong, says in (
        ("network_policy", policy, rf"Unsupported parameter: 'network_policy'.*{off}"),
        ("expires_after", {"anchor": "last_active_at", "minutes": 0}, "minutes"),
    ):
        refusal(openai.BadRequestError, client.containers.create, name="x", match=says, **{name: wrong})
    made = client.containers.create(name="x")
    files = f"{server.base_url}/containers/{made.id}/files"
    assert httpx.post(files, files={"other": b"x"}).json()["error"]["param"] == "file"
    assert httpx.post(files, json={}).json()["error"]["param"] == "file"
    assert httpx.post(files, json={"file_id": 1}).json()["error"]["param"] == "file_id"
    broken = httpx.post(files, content=b"--x", headers={"content-type": "multipart/form-data; boundary=y"})
    assert broken.status_code == 400
    large = httpx.post(files, content=b"", headers={"content-type": "multipart/form-data; boundary=y"})
    assert large.status_code == 400
    assert httpx.put(files).status_code == 405
    put = client.containers.files.create(made.id, file=("../../escape.txt", b"x"))
    assert put.path == "/mnt/data/escape.txt"


def test_slow_readers_of_a_large_file_cost_a_part_of_it_each(server: Server, client: OpenAI) -> None:
    size, readers = 100_000_000, 4
    made = client.responses.create(input=f"python: open('big.bin', 'wb').truncate({size});", **ASKED)
    container = call_of(made).container_id
    (file,) = client.containers.files.list(container)
    path = f"/containers/{container}/files/{file.id}/content"
    server.forget_peak()
    before = server.memory_bytes()
    with httpx.Client(base_url=server.base_url, timeout=30, verify=False) as http, contextlib.ExitStack() as slow:
        parts = [slow.enter_context(http.stream("GET", path)).iter_bytes() for _ in range(readers)]
        assert all(set(next(part)) == {0} for part in parts)
        assert server.peak_memory_bytes() - before < size / 2
        head = http.head(path)
        assert (head.headers["content-length"], head.headers["content-type"]) == (str(size), "application/octet-stream")
        assert head.headers["content-disposition"] == 'attachment; filename="big.bin"'
        assert sum(map(len, parts[0])) > size - 1_000_000  # one of them reads on to its end
    assert server.peak_memory_bytes() - before < size / 2
