"""The reference: what is generated has everything that there is."""

import ast
import re
from pathlib import Path

import pytest
from django.core.management import get_commands

from docs.extension import GENERATED, commands, errors, events, metrics, modules, paths, settings, written
from docs.extension import error_texts as texts
from responses_app.api.endpoints import ENDPOINTS
from responses_app.command_line.parser import build_parser
from responses_app.management.flags import FLAGS
from responses_app.observing.exposition import page
from responses_app.observing.metrics import Metrics
from responses_app.protocol.events.dialects import PRESETS, Switch
from responses_app.protocol.events.events import EVENTS, FRAMES, EventType
from responses_app.protocol.response.steps import StopReason
from responses_app.settings.conf import table
from responses_app.settings.models import embeddings_options, template_variables
from responses_app.settings.order import ORDER
from tests.kit.server import ROOT
from tests.project.docs.pages import DOCS, everything, pages, text_of


@pytest.mark.parametrize("name", GENERATED)
def test_a_page_shows_each_part_that_is_generated(name: str) -> None:
    assert everything().count(f"<!-- generated: {name} -->") == 1
    assert GENERATED[name]()


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_generated_parts_are_as_the_code_has_them(page: Path) -> None:
    assert text_of(page) == written(text_of(page)), "write them anew: python -m docs.extension"


def test_every_setting_has_what_it_takes_its_default_and_a_sentence() -> None:
    without_groups = re.sub(r"^## .*\n\n", "", settings.markdown(), flags=re.MULTILINE)
    sections = re.split(r"^### ", without_groups, flags=re.MULTILINE)[1:]
    assert [section.partition("\n")[0] for section in sections] == [row.name for row in table()]
    for section in sections:
        assert re.fullmatch(r"\w+\n\n\S.*\.\n\n- takes: .+\n- default: .+\n(- .+\n)*", f"{section.rstrip()}\n"), section
    assert set(re.findall(r"`(--[a-z-]+)`", settings.markdown())) >= set(FLAGS)


def test_settings_are_under_headings_each_of_which_is_there_once() -> None:
    headings = re.findall(r"^## (.*)$", settings.markdown(), re.MULTILINE)
    assert len(headings) > 10
    assert len(set(headings)) == len(headings)
    assert {name for name, _ in ORDER} <= {row.name for row in table()}


def test_an_example_of_json_is_one_of_the_setting() -> None:
    assert '"enable_thinking"' in settings.takes(template_variables)
    assert '"gpu_memory_utilization"' in settings.takes(embeddings_options)


def test_what_a_setting_takes_is_what_it_says_where_it_is_wrong() -> None:
    parts = settings.markdown()
    assert "\n\n- takes: a whole number of at least 1 and at most 65535\n- default: `8000`\n" in parts
    assert "- takes: one of auto, on, off" in parts


def test_many_bytes_are_shown_as_they_are_written_with_their_size_beside() -> None:
    shown = settings.markdown()
    assert "\n- default: `33554432` (32 MiB)\n" in shown
    assert re.search(r"default: `?\d+ [KMG]iB", shown) is None


def test_every_event_and_frame_has_its_line() -> None:
    assert set(EVENTS) == set(EventType)
    frames = ast.parse((ROOT / "responses_app/protocol/events/events.py").read_text())
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
    found = errors.codes()
    assert set(found) == {name for part in texts.OF_ERRORS for name in part}
    assert {name for name, statuses in found.items() if statuses} == set(texts.REQUESTS)
    assert found["rate_limit_exceeded"] == {429}
    assert found["model_not_found"] == {403, 404}


def test_a_code_is_found_however_it_is_handed_over() -> None:
    """By its place (`Refused("…")`), by its name, as a default, in an object: else a line could be missing."""
    sources = "".join(
        (ROOT / "responses_app" / name).read_text()
        for name in (
            "protocol/session/steering.py",
            "tools/image_service.py",
            "runs/plan/failures.py",
        )
    )
    written = set(re.findall(r'(?:Refused\(|failed\(|code=|code: str = |"code": |else )\s*"([a-z]+_[a-z_]+)"', sources))
    assert len(written) > 15
    assert written <= set(errors.codes())


def test_every_type_of_an_error_has_its_line() -> None:
    sources = [path.read_text() for path in (ROOT / "responses_app" / "protocol").rglob("*.py")]
    raised = {kind for source in sources for kind in re.findall(r'type(?:: str = |=)"([a-z_]+_error)"', source)}
    assert raised == set(texts.TYPES)


def test_every_reason_of_an_incomplete_response_has_its_line() -> None:
    untold = {StopReason.CANCELLED, StopReason.SERVER_STOPPED, StopReason.DISCARDED}  # they end otherwise
    machine = (ROOT / "responses_app/protocol/response/response.py").read_text()
    written = set(re.findall(r'Status.INCOMPLETE, reason="([a-z_]+)"', machine))
    assert set(texts.REASONS) == written | {reason.value for reason in set(StopReason) - untold}


def test_every_code_of_a_close_has_its_line() -> None:
    source = "".join(
        (ROOT / "responses_app" / name).read_text()
        for name in ("web/sockets/connection.py", "web/sockets/consumer.py", "protocol/session/session.py")
    )
    found = re.findall(r"\b_?(?:C|c)lose\((1\d{3})|^[A-Z_]+ = (1\d{3})\b", source, re.MULTILINE)
    numbers = {number for pair in found for number in pair if number}
    assert numbers | {"1002", "1007"} == set(texts.CLOSES)  # the servers' parsers find those two


def test_what_is_said_of_an_error_is_in_sentences() -> None:
    for part in texts.PARTS:
        for name, told in part.items():
            assert all(re.fullmatch(r"[A-Z0-9`].*[.]", said) and "…" not in said for said in told), name


def test_every_command_has_its_section() -> None:
    ours = {name for name, app in get_commands().items() if app == "responses_app"}
    assert ours == set(re.findall(r"^### respsite manage (\w+)$", commands.manage(), re.MULTILINE))
    program = set(re.findall(r"^### respsite (.+)$", commands.program(), re.MULTILINE))
    assert program == {name for name, _ in commands.subcommands(build_parser())}
    assert {"serve", "completion"} <= program
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets == set(re.findall(r"`make ([a-z-]+)`", commands.targets()))


def test_every_metric_has_its_line() -> None:
    shown = set(re.findall(r"^\| `((?:respsite|gen_ai)_\w+)`", metrics.markdown(), re.MULTILINE))
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
    shown = paths.markdown()
    for endpoint in ENDPOINTS:
        assert f"| {endpoint.method} | `{endpoint.shown_path}` | " in shown


def test_the_page_of_dialects_has_every_name() -> None:
    page = text_of(DOCS / "reference" / "dialects.md") + GENERATED["dialect-rules"]()
    assert [name for name in (*PRESETS, *Switch) if f"| `{name}`" not in page] == []
