"""`respsite conformance`: against this server, against servers that are bad to their clients, and what it writes."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from responses_app.command_line import main
from responses_app.command_line.endpoint import RemoteServer
from responses_app.extensions.conformance.program import CHECKS
from responses_app.extensions.conformance.telling import PAINS
from tests.kit.closed import ClosedServer
from tests.kit.server import Server, free_port
from tests.wire.command_line.hostile import WAYS, hostile_server
from tests.wire.command_line.program import respsite

# What the demo engine does not have, or this server not by its defaults. Nothing else may be absent.
ABSENT = {
    "json.logprobs",
    "chat.logprobs",
    "chat.sound",
    "tools.web_search",
    "tools.image_generation",
    "messages.web_search",
}
# What cannot be tried without a key, or with an engine that caches nothing.
SKIPPED = {"errors.key", "state.cache_kept", "messages.changing_header"}
EITHER = {"tools.code_interpreter", "background.cancelled"}  # by the sandbox of the machine; by how busy it is
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def verdicts(told: Any, verdict: str) -> set[str]:
    return {check["name"] for check in told["checks"] if check["verdict"] == verdict}


def test_this_server_passes_all(daphne_server: Server, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    done = respsite("conformance", daphne_server.url, "--json", "--junit", junit, "--seconds", "120")
    told = json.loads(done.stdout)
    failed = {check["name"]: check["came"] for check in told["checks"] if check["verdict"] == "failed"}
    assert (failed, done.returncode) == ({}, 0), done.stderr
    assert verdicts(told, "absent") - EITHER == ABSENT
    assert verdicts(told, "skipped") - EITHER == SKIPPED
    assert [check["name"] for check in told["checks"]] == [check.name for check in CHECKS]
    assert sum(told["counts"].values()) == len(CHECKS)
    assert told["model"] == "demo"
    suites = ElementTree.parse(junit).getroot()
    cases = suites.findall("testsuite/testcase")
    assert [case.attrib["name"] for case in cases] == [check.name for check in CHECKS]
    assert sum(int(suite.attrib["skipped"]) for suite in suites) == told["counts"]["absent"] + told["counts"]["skipped"]
    assert len(suites.findall("testsuite/testcase/skipped")) == told["counts"]["absent"] + told["counts"]["skipped"]


def test_the_key_is_used_and_never_told(tmp_path: Path) -> None:
    with ClosedServer(tmp_path / "closed", auth="on") as server:
        only = ("--only", "errors.key", "--only", "websocket.upgrade", "--only", "messages.answer")
        asked = ("conformance", server.url, *only, "--junit", tmp_path / "j.xml", "--model", "demo", "--json")
        refused = respsite(*asked)
        assert refused.returncode == 1
        by_variable = respsite(*asked, "--key-variable", "OWN_KEY", OWN_KEY=server.key)
        by_flag = respsite(*asked, "--key", server.key)
    for done in (by_variable, by_flag):
        assert (done.returncode, verdicts(json.loads(done.stdout), "failed")) == (0, set())
        assert server.key not in done.stdout + done.stderr
    assert server.key not in (tmp_path / "j.xml").read_text()


def test_every_check_says_its_rule_and_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS) > 100
    for check in CHECKS:
        assert check.rule.endswith("."), check.name
        assert check.source.startswith("https://"), check.name
        assert not check.pain or check.pain in PAINS, check.name
    seen = {check.pain for check in CHECKS}
    assert {key for key, pain in PAINS.items() if not pain.unseen} == seen - {""}
    assert main(["conformance", "--list", "--only", "models"]) == 0
    listed = capsys.readouterr().out
    assert "models.unknown" in listed
    assert "json.answer" not in listed


def test_what_was_typed_wrong_is_said(daphne_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    url = "http://127.0.0.1:1"
    for words in ((), (url, "--only", "nothing"), (url, "--at-once", "0"), (url, "--seconds", "0"), ("ftp://a",)):
        assert main(["conformance", *words]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.startswith("respsite: ")) == ("", True)
    assert main(["conformance", f"http://127.0.0.1:{free_port()}/v1"]) == 1
    assert "cannot be reached (Connection refused). Check the URL." in capsys.readouterr().err
    assert main(["conformance", daphne_server.url, "--only", "models", "--junit", "/nowhere/a.xml"]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_a_host_that_nobody_knows_is_told_in_words() -> None:
    unknown = RemoteServer("http://nowhere.invalid/v1").unreachable(OSError(-2, "Name or service not known"))
    assert "cannot be reached (Name or service not known)" in str(unknown)


def test_failures_are_told_with_what_was_sent(daphne_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that is not there: nothing can be answered."""
    assert main(["conformance", daphne_server.url, "--only", "json", "--model", "[red]nobody"]) == 1
    shown = capsys.readouterr().out
    assert "✗ json.answer" in shown
    for name in ("expected", "sent", "came", "source"):
        assert f"    {name}" in shown
    assert "[red]nobody" in shown


@pytest.mark.parametrize("way", WAYS)
def test_no_server_can_break_it(way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junit = tmp_path / "junit.xml"
    with hostile_server(WAYS[way]) as base_url:
        # What hangs is cut; a whole answer has to be read within that.
        seconds = "0.3" if way == "hang" else "10"
        asked = ("conformance", base_url, "--model", "m", "--seconds", seconds, "--at-once", "8")
        firsts = ("json.answer", "stream.answer", "models.list", "websocket.upgrade", "messages.answer", "chat.answer")
        only = [word for name in firsts for word in ("--only", name)]
        assert main([*asked, *only, "--junit", str(junit)]) == 1
        shown = capsys.readouterr()
        assert main(["conformance", base_url, "--seconds", seconds]) == 1
        nameless = capsys.readouterr()
        assert main([*asked, "--only", "json.answer", "--only", "websocket.upgrade", "--json"]) == 1
        as_json = capsys.readouterr()
    assert "✗ json.answer" in shown.out
    assert nameless.out == ""
    for text in (shown.out, shown.err, nameless.err, as_json.out):
        assert not CONTROLS.search(text), repr(text)
    assert len(shown.out) < 20_000
    assert len(as_json.out) < 100_000
    assert json.loads(as_json.out)["counts"]["failed"] > 0
    assert len(ElementTree.parse(junit).getroot().findall("testsuite/testcase")) == len(firsts)
