"""`respsite export` and `import`: what is kept of one server continues at another."""

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from responses_app.stores.database.transfer.lines import Imported, NotAnExport, take_in
from tests.kit.pictures import data_url, picture
from tests.kit.server import Server
from tests.wire.command_line.program import respsite, settings_of

# The program, which tells how far it is at every step: in a pipe it does so every five seconds.
EAGER = (
    *(sys.executable, "-c"),
    "import sys; from responses_app.command_line import main; from responses_app.management import terminal; "
    "terminal.SECONDS = 0.001; sys.exit(main())",
)


def ask(server: Server, text: object, **fields: object) -> Any:
    body = {"input": text, **fields}
    answer = httpx.post(f"{server.base_url}/responses", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def get(server: Server, path: str) -> Any:
    answer = httpx.get(f"{server.base_url}{path}", timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json() if "json" in answer.headers["content-type"] else answer.text


def test_what_is_exported_continues_where_it_is_imported(daphne_server: Server, tmp_path: Path) -> None:
    image = {"type": "input_image", "image_url": data_url(picture("#123456"))}
    first = ask(daphne_server, [{"role": "user", "content": [image]}])
    gone = ask(daphne_server, "And then", previous_response_id=first["id"])
    last = ask(daphne_server, "count to 4", previous_response_id=gone["id"])
    assert httpx.delete(f"{daphne_server.base_url}/responses/{gone['id']}").status_code == 200
    conversation = httpx.post(f"{daphne_server.base_url}/conversations", json={}).json()["id"]
    ask(daphne_server, "Hello there", conversation=conversation)
    asked = {"messages": [{"role": "user", "content": "Hello"}], "n": 2, "store": True, "metadata": {"a": "b"}}
    chat = httpx.post(f"{daphne_server.base_url}/chat/completions", json=asked, timeout=60).json()["id"]
    paths = [f"/responses/{last['id']}", f"/responses/{last['id']}/input_items", f"/conversations/{conversation}/items"]
    paths += [f"/responses/{last['id']}?stream=true"]
    paths += [f"/chat/completions/{chat}", f"/chat/completions/{chat}/messages"]
    kept = [get(daphne_server, path) for path in paths]

    file = tmp_path / "kept.jsonl"
    exported = respsite("export", file, **settings_of(daphne_server))
    assert exported.returncode == 0, exported.stderr
    whole = file.read_bytes()
    records = list(map(json.loads, whole.splitlines()))
    kinds = [record["kind"] for record in records]
    assert (kinds[0], kinds[-1]) == ("header", "end")
    assert {first["id"], last["id"], conversation} < {record.get("id") for record in records}
    assert gone["id"] in {record["id"] for record in records if record["kind"] == "part"}
    again = respsite("export", file, **settings_of(daphne_server))
    assert (again.returncode, "--resume" in again.stderr, file.read_bytes()) == (2, True, whole)
    cut_file = tmp_path / "cut.jsonl"
    cut_file.write_bytes(whole[: whole.index(b'{"kind":"items"') + 20])
    elsewhere = Server(tmp_path / "elsewhere", secret_key=(daphne_server.folder / "secret_key").read_text())
    cut = respsite("import", cut_file, **settings_of(elsewhere))
    assert cut.returncode == 1
    assert "The file ends early" in cut.stderr
    assert "0 conversations" in cut.stderr, "one that may be cut is left for the next time"
    resumed = respsite("export", cut_file, "--resume", **settings_of(daphne_server))
    assert (resumed.returncode, cut_file.read_bytes()) == (0, whole), resumed.stderr
    imported = respsite("import", file, program=EAGER, **settings_of(elsewhere))
    assert imported.returncode == 0, imported.stderr
    assert "Imported 0 responses" in imported.stderr
    assert "there already" in imported.stderr
    assert f" of {len(whole):,} bytes imported\n" in imported.stderr, "a pipe gets lines now and then"
    with elsewhere:  # it has the same SECRET_KEY, of which streams make the ids of items
        assert [get(elsewhere, path) for path in paths] == kept
        answer = ask(elsewhere, "Hello", previous_response_id=last["id"])
        assert "user message 4" in answer["output"][-1]["content"][0]["text"]
        answer = ask(elsewhere, "describe", previous_response_id=last["id"])
        assert answer["output"][-1]["content"][0]["text"] == "Image 1: PNG, 8 × 8, mostly #123456."
        answer = ask(elsewhere, "Hello", conversation=conversation)
        assert "user message 2" in answer["output"][-1]["content"][0]["text"]


def test_what_is_no_export_changes_nothing(daphne_server: Server, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.jsonl"
    header = {"kind": "header", "format": "respsite", "version": 1}
    circle = {"kind": "part", "id": "x", "part": {"id": "x", "parent_id": "x"}}
    rows: list[Any] = [
        header,
        {"kind": "response", "id": "x", "response": {"id": "x" * 65}},
        7,
        circle,
        {"kind": "end"},
    ]
    wrong.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = respsite("import", wrong, **settings_of(daphne_server))
    assert (done.returncode, done.stderr.count("Passed over: line")) == (1, 3)
    assert "line 4: it goes on from itself" in done.stderr
    missing = respsite("import", tmp_path / "missing", **settings_of(daphne_server))
    assert "cannot be read (No such file or directory)" in missing.stderr


def test_a_file_of_something_else_is_refused() -> None:
    for line in (b"", b"{", b'{"response": {}}', b'{"format": "respsite", "version": 2}'):
        with pytest.raises(NotAnExport):
            next(take_in([line], Imported()))


@pytest.mark.django_db
def test_what_no_table_takes_is_named_and_passed_over() -> None:
    part = {"id": "x", "started_on": "", "kinds": "", "lengths": "", "tokens": "", "settles": True, "ends_final": True}
    title = {"kind": "conversation", "id": "c", "conversation": {"id": "c", "title": "\x00"}}
    log = {"response_id": "r", "position": 2**64}
    lines: list[Any] = [
        {"kind": "header", "format": "respsite", "version": 1},
        {"kind": "part", "id": "x", "part": {**part, "id": "a\x00"}},
        {"kind": "part", "id": "x", "part": {**part, "kinds": "\ud800"}},
        {"kind": "response", "id": "r", "response": {"id": "r"}, "log": [log]},
        title,
        {"kind": "end"},
    ]
    encoded = [json.dumps(line).encode() for line in lines]
    counted = Imported()
    for _ in take_in([encoded[0], b"[" * 100_000 + b"]" * 100_000, *encoded[1:]], counted):
        pass
    assert counted.reasons == [
        "line 2: it is nested too deeply",
        "line 3: 'id' is not a text that this table takes",
        "line 4: 'kinds' is not a text that this table takes",
        "line 5: 'position' is not a number that this table takes",
        "line 6: 'title' is not a text that this table takes",
    ]


@pytest.mark.django_db
def test_a_choice_that_cannot_be_told_is_named_and_passed_over() -> None:
    """It made each list of its project's chats a 500; rows of another project would have changed what that has."""
    told = {"id": "resp_1", "created_at": 1, "model": "m", "service_tier": "default", "output": [], "usage": None}
    body = {**told, "incomplete_details": None}
    row = {"id": "resp_1", "project": "p", "first_id": "resp_1", "model": "m", "messages": [{"role": "user"}]}
    lines = [{"kind": "header", "format": "respsite", "version": 1}]
    for wrong in ({"messages": [1]}, {"form": {"stops": 5}}, {"metadata": 5}, {"project": "q"}):
        response = {"id": "resp_1", "project": "p", "status": "completed", "body": body}
        lines.append({"kind": "response", "id": "resp_1", "response": response, "choice": {**row, **wrong}})
    lines.append({**lines[1], "choice": row, "response": {**lines[1]["response"], "body": {}}})  # type: ignore[dict-item]
    counted = Imported()
    for _ in take_in([json.dumps(line).encode() for line in lines], counted):
        pass
    assert (counted.broken, counted.responses) == (5, 0)
    assert counted.reasons[3] == "line 5: it holds rows of another project"
