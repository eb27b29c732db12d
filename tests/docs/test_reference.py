"""The reference: what is generated has everything that there is."""

import ast
import re

import pytest
from django.core.management import get_commands

from docs.extension import GENERATED, commands, errors, events, metrics, modules, paths, settings
from responses_app.command_line.parser import build_parser
from responses_app.conf import table
from responses_app.management.flags import FLAGS
from responses_app.observing.exposition import page
from responses_app.observing.metrics import Metrics
from responses_app.protocol.dialects import PRESETS, Switch
from responses_app.protocol.event_texts import EVENTS, FRAMES
from responses_app.protocol.events import EventType
from tests.docs.pages import DOCS, everything, text_of
from tests.server import ROOT


@pytest.mark.parametrize("name", GENERATED)
def test_a_page_shows_each_part_that_is_generated(name: str) -> None:
    assert everything().count(f"<!-- generated: {name} -->") == 1
    assert GENERATED[name]()


def test_every_setting_has_what_it_takes_its_default_and_a_sentence() -> None:
    sections = re.split(r"^## ", settings.markdown(), flags=re.MULTILINE)[1:]
    assert [section.partition("\n")[0] for section in sections] == [row.name for row in table()]
    for section in sections:
        assert re.fullmatch(r"\w+\n\n\S.*\.\n\n- takes: .+\n- default: .+\n(- .+\n)*", f"{section.rstrip()}\n"), section
    assert set(re.findall(r"`(--[a-z-]+)`", settings.markdown())) >= set(FLAGS)


def test_what_a_setting_takes_is_what_it_says_where_it_is_wrong() -> None:
    parts = settings.markdown()
    assert "## PORT\n\nPort `make run` listens on.\n\n- takes: a whole number of at least 1 and at most 65535" in parts
    assert "- takes: one of auto, on, off" in parts


def test_every_event_and_frame_has_its_line() -> None:
    assert set(EVENTS) == set(EventType)
    frames = ast.parse((ROOT / "responses_app/protocol/frames.py").read_text())
    types = {
        value.value
        for node in ast.walk(frames)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "type" and isinstance(value, ast.Constant)
    }
    assert set(FRAMES) == types - {"invalid_request_error"}
    assert all(f"| `{name}` |" in events.events() for name in EventType)


def test_every_code_of_an_error_has_its_line() -> None:
    sources = [path.read_text() for path in (ROOT / "responses_app" / "protocol").rglob("*.py")]
    raised = {code for source in sources for code in re.findall(r'code="([a-z_]+)"', source)}
    found = errors.codes()
    assert len(raised) > 25
    assert raised <= set(found)
    assert [name for name, code in found.items() if not code.texts] == []
    assert found["rate_limit_exceeded"].statuses == {429}


def test_every_command_has_its_section() -> None:
    ours = {name for name, app in get_commands().items() if app == "responses_app"}
    assert ours == set(re.findall(r"^### manage.py (\w+)$", commands.manage(), re.MULTILINE))
    program = set(re.findall(r"^### respsite (.+)$", commands.program(), re.MULTILINE))
    assert program == {name for name, _ in commands.subcommands(build_parser())}
    assert {"serve", "completion"} <= program
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets == set(re.findall(r"`make ([a-z-]+)`", commands.targets()))


def test_every_metric_has_its_line() -> None:
    shown = set(re.findall(r"^\| `(respsite_\w+)`", metrics.markdown(), re.MULTILINE))
    said, _ = page(Metrics(), "")
    assert shown >= set(re.findall(r"^# TYPE (\w+) (?!unknown)", said.decode(), re.MULTILINE))
    assert len(shown) > 25


def test_every_module_has_its_line() -> None:
    shown = modules.markdown()
    for package in ("engine", "responses_app", "respsite"):
        for path in (ROOT / package).rglob("*.py"):
            if path.name != "__init__.py" and path.parent.name != "migrations":
                assert f"\n| `{path.stem}` | " in shown.partition(f"## {path.parent.relative_to(ROOT)}/\n")[2], path


def test_every_path_of_the_api_has_its_line() -> None:
    for path, method, _ in paths.operations():
        assert f"| {method.upper()} | `{path}` | " in paths.markdown()


def test_the_page_of_dialects_has_every_name() -> None:
    page = text_of(DOCS / "reference" / "dialects.md") + GENERATED["dialect-rules"]()
    assert [name for name in (*PRESETS, *Switch) if f"| `{name}`" not in page] == []
