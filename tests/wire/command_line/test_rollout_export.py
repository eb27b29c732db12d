"""`respsite rollouts export` against a real server."""

import json
from pathlib import Path
from uuid import uuid4

import pytest

from tests.kit.sdk import sdk_of
from tests.kit.server import Server
from tests.wire.command_line.program import respsite


@pytest.fixture
def group(daphne_server: Server) -> str:
    """A group of three roll-outs."""
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
