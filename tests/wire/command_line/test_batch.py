"""`respsite batch run` against a real server."""

import json
from pathlib import Path

from tests.kit.batches import batch_of, content_of, line
from tests.kit.sdk import sdk_of
from tests.kit.server import Server
from tests.wire.command_line.program import respsite

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


def test_what_is_wrong_is_told(daphne_server: Server, tmp_path: Path) -> None:
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
