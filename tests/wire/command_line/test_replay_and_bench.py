"""`respsite replay` and `respsite bench` against a real server."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import httpx

from responses_app.command_line.bench import percentile
from responses_app.command_line.replay import seconds_per_token
from tests.kit.server import Server, free_port
from tests.wire.command_line.program import respsite


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
