"""`respsite rollouts`, `batch run`, `replay` and `bench` against a real server."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from responses_app.extensions.terminal.bench import percentile
from responses_app.extensions.terminal.replay import seconds_per_token
from tests.kit.batches import batch_of, content_of, line
from tests.kit.sdk import sdk_of
from tests.kit.server import Server, free_port
from tests.wire.command_line.program import respsite


def said(server: Server, *words: str) -> list[Any]:
    ran = respsite("rollouts", *words, "--url", server.url)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_the_life_of_a_roll_out(daphne_server: Server) -> None:
    group = f"g-{uuid4().hex}"
    names = [f"{group}.{number}" for number in range(3)]
    with sdk_of(daphne_server) as client:
        for name in names:
            client.post("/rollouts", body={"id": name, "group": group}, cast_to=object)
        answer = client.responses.create(model="demo", input="Hello", extra_headers={"x-rollout-id": names[0]})
    assert [each["id"] for each in said(daphne_server, "list", "--group", group)] == names[::-1]
    assert [each["id"] for each in said(daphne_server, "list", "--group", group, "--limit", "2")] == names[:0:-1]
    [head] = said(daphne_server, "show", names[0])
    [tree] = said(daphne_server, "show", names[0], "--tree")
    assert "nodes" not in head
    assert [each["response_id"] for each in tree["generations"]] == [answer.id]
    said(daphne_server, "reward", names[0], "-0.5")
    [rewarded] = said(daphne_server, "reward", names[0], '{"tests": 1}', "--turn", answer.id)
    assert [(each["reward"], each["turn"]) for each in rewarded["rewards"]] == [(-0.5, None), ({"tests": 1}, answer.id)]
    assert said(daphne_server, "end", names[0])[0]["status"] == "ended"
    assert said(daphne_server, "delete", names[0])[0]["deleted"] is True
    assert [each["id"] for each in said(daphne_server, "list", "--group", group)] == names[:0:-1]


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("show", "nobody"), 1, "No rollout found"),
        (("show", "../models"), 1, "40"),
        (("reward", "nobody", "high"), 2, "a number, or a JSON object"),
        (("reward", "nobody", "true"), 2, "a number, or a JSON object"),
        (("list", "--limit", "0"), 2, "at least 1"),
        (("forget", "nobody"), 2, "invalid choice"),
    ],
)
def test_what_is_wrong_is_told(daphne_server: Server, words: tuple[str, ...], status: int, told: str) -> None:
    ran = respsite("rollouts", *words, *(("--url", daphne_server.url) if words[0] != "forget" else ()))
    assert (ran.returncode, told in ran.stderr) == (status, True), ran.stderr


@pytest.fixture
def group(daphne_server: Server) -> str:
    group = f"g-{uuid4().hex}"
    with sdk_of(daphne_server) as client:
        for number in range(3):
            name = f"{group}.{number}"
            client.post("/rollouts", body={"id": name, "group": group}, cast_to=object)
            for text in ("Hello", "Bye"):
                client.responses.create(model="demo", input=text, extra_headers={"x-rollout-id": name})
    return group


def ids(file: Path) -> list[str]:
    return [json.loads(line)["rollout_id"].rpartition(".")[2] for line in file.read_text().splitlines()]


def test_a_file_is_written_and_an_interrupted_one_goes_on(daphne_server: Server, group: str, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    words = ("rollouts", "export", file, "--format", "verifiers", "--group", group, "--url", daphne_server.url)
    ran = respsite(*words)
    assert ran.returncode == 0, ran.stderr
    whole = file.read_bytes()
    assert ids(file) == ["0", "1", "2"]
    again = respsite(*words)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    lines = whole.splitlines(keepends=True)
    # Cut within a row, behind a row, within the first row, and nowhere.
    for cut in (len(lines[0]) + len(lines[1]) + 9, len(lines[0]) + len(lines[1]), 20, len(whole)):
        file.write_bytes(whole[:cut])
        ran = respsite(*words, "--resume")
        assert (ran.returncode, file.read_bytes() == whole) == (0, True), ran.stderr


def test_standard_output_and_what_is_wrong(daphne_server: Server, group: str, tmp_path: Path) -> None:
    where = ("--url", daphne_server.url)
    ran = respsite("rollouts", "export", "-", "--group", group, "--after", f"{group}.1", *where)
    assert (ran.returncode, [json.loads(line)["id"] for line in ran.stdout.splitlines()]) == (0, [f"{group}.2"])
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text("{}\n")
    for words, status, told in (
        ((tmp_path / "a", "--after", "none"), 1, "It takes the id of an item of this list"),
        ((tmp_path / "b", "--format", "csv"), 2, "invalid choice"),
        ((tmp_path / "no" / "c",), 1, "cannot be written"),
        ((foreign, "--resume"), 2, "was not written by"),
        ((tmp_path / "d", "--file-type", "parquet", "--resume"), 2, "cannot be resumed"),
    ):
        ran = respsite("rollouts", "export", *words, *where)
        assert (ran.returncode, told in ran.stderr) == (status, True), ran.stderr


GOOD = [line(str(number), input="Say hello.") for number in range(5)]


def test_from_its_file_to_its_output(daphne_server: Server, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(content_of([*GOOD, line("bad", input="x", temperature=99)]))
    where = ("--url", daphne_server.url)
    ran = respsite("batch", "run", file, *where)
    assert ran.returncode == 1, ran.stderr  # a line has failed
    assert "5 of 6 requests succeeded, 1 failed" in ran.stderr
    answers = [json.loads(each) for each in (tmp_path / "in.jsonl.output.jsonl").read_text().splitlines()]
    assert [each["custom_id"] for each in answers] == ["0", "1", "2", "3", "4"]
    failed = [json.loads(each) for each in (tmp_path / "in.jsonl.errors.jsonl").read_text().splitlines()]
    assert [each["custom_id"] for each in failed] == ["bad"]
    again = respsite("batch", "run", file, *where)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)


def test_it_goes_on_with_one_that_was_created(daphne_server: Server, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    with sdk_of(daphne_server) as client:
        batch = batch_of(client, GOOD)
    out = tmp_path / "out.jsonl"
    ran = respsite("batch", "run", file, "--batch", batch.id, "--url", daphne_server.url, "--output", out)
    assert (ran.returncode, len(out.read_text().splitlines())) == (0, 5)


def test_what_is_wrong_with_a_batch_is_told(daphne_server: Server, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(content_of([*GOOD, GOOD[0]]))
    where = ("--url", daphne_server.url)
    doubled = respsite("batch", "run", file, *where)
    assert (doubled.returncode, "Line 6: An earlier line has the custom_id '0'" in doubled.stderr) == (1, True)
    for words, status, told in (
        (("batch", "run", tmp_path / "none"), 1, "cannot be read"),
        (("batch", "rnu", file), 2, "Did you mean run?"),
        (("batch", "run", file, "--bacth", "a"), 2, "Did you mean --batch?"),
        (("batch", "run", file, "--batch", "batch_none"), 1, "No batch found"),
        (("batch", "run", file, "--endpoint", "/v1/none"), 1, "endpoint"),
    ):
        ran = respsite(*words, *where)
        assert (ran.returncode, told in ran.stderr) == (status, True), ran.stderr
    file.write_text("nonsense\n")
    ran = respsite("batch", "run", file, *where)
    assert (ran.returncode, "does not begin with a line of a batch" in ran.stderr) == (2, True)


def test_a_stored_response_is_shown_once_more(daphne_server: Server) -> None:
    asked = {"input": "count to 12", "stream": True}
    stream = httpx.post(f"{daphne_server.base_url}/responses", json=asked, timeout=30).text
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    response_id = events[0]["response"]["id"]
    where = ("replay", response_id, "--url", daphne_server.url, "--speed", "1000")
    assert respsite(*where).stdout == "1 2 3 4 5 6 7 8 9 10 11 12\n"
    lines = respsite(*where, "--json", "--starting-after", "9").stdout.splitlines()
    assert [json.loads(line) for line in lines] == events[10:]
    unknown = respsite("replay", "resp_unknown", "--url", daphne_server.url)
    assert (unknown.returncode, "resp_unknown" in unknown.stderr) == (1, True)


def test_the_pace_is_the_response_s_own() -> None:
    response = {"created_at": 100, "completed_at": 110, "usage": {"output_tokens": 40}}
    assert seconds_per_token(response) == 0.25
    assert seconds_per_token({"created_at": 100, "completed_at": None, "usage": None}) == 0


def test_a_server_is_measured(daphne_server: Server, tmp_path: Path) -> None:
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.svg"
    done = respsite(
        *("bench", daphne_server.url, "--concurrency", "1,3", "--requests", "4", "--max-tokens", "40"),
        *("--json", figures, "--svg", picture),
    )
    chat = respsite(
        *("bench", daphne_server.url, "--api", "chat", "--model", "demo", "--concurrency", "2", "--requests", "2"),
        *("--json", "-"),
    )
    assert [level["errors"] for level in json.loads(chat.stdout)["levels"]] == [0]
    assert done.returncode == 0, done.stderr
    assert "Time to the first token" in done.stdout
    levels = json.loads(figures.read_text())["levels"]
    assert [(level["concurrent"], level["requests"], level["errors"]) for level in levels] == [(1, 4, 0), (3, 4, 0)]
    for level in levels:
        assert 0 < level["first_p50"] <= level["first_p95"]
        assert level["tokens_per_second"] > 0
        assert level["gap_p50"] <= level["gap_p95"] <= level["gap_max"]
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_what_cannot_be_measured_is_said() -> None:
    away = respsite("bench", f"http://127.0.0.1:{free_port()}/v1")
    assert (away.returncode, "cannot be reached" in away.stderr) == (1, True)
    assert respsite("bench", "http://127.0.0.1:1", "--concurrency", "many").returncode == 2


def test_percentiles_are_values_that_were_measured() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    assert [percentile(values, part) for part in (0.0, 0.5, 0.95, 1.0)] == [1.0, 2.0, 4.0, 4.0]
    assert percentile([], 0.5) is None
