"""The page that `make conformance-table` prints, of made-up results; and that what the docs have is such a page."""

from typing import Any

from bench.conformance_page import page
from responses_app.extensions.conformance.program import CHECKS, GROUPS
from responses_app.extensions.conformance.telling import PAINS
from tests.kit.server import ROOT

ENVIRONMENT = {"respsite": "1", "vLLM": "2", "LiteLLM": "3", "agentic-api": "4", "day": "1 May"}


def told(**others: tuple[str, str]) -> dict[str, Any]:
    """Return results: all passed but the given ones, by names with `__` for the dot."""
    given = {name.replace("__", "."): value for name, value in others.items()}
    checks = [
        {"name": check.name, "expected": check.rule, "pain": check.pain, "verdict": verdict, "came": came}
        for check in CHECKS
        for verdict, came in [given.get(check.name, ("passed", ""))]
    ]
    return {"checks": checks}


def test_what_we_fail_stands_first() -> None:
    ours = told(json__usage=("failed", "no <b>usage</b> | _x_ \x1b[1m"), json__tier=("absent", "refused"))
    other = told(**{f"models__{check.name.partition('.')[2]}": ("absent", "404") for check in GROUPS[0].checks})
    made = page({"respsite": ours, "vLLM": other}, ENVIRONMENT)
    failed, rest = made.index("`json.usage`"), made.index("## All servers")
    assert failed < made.index("`json.tier`") < rest
    assert "no \\<b\\>usage\\</b\\> \\| \\_x\\_ \\[1m" in made
    assert "| Models | 4/4 | – |" in made
    count = len(CHECKS)
    assert f"| **all** | **{count - 2}/{count - 1}, 1 –** | **{count - 4}/{count - 4}, 4 –** |" in made


def test_the_page_of_the_docs_is_of_these_checks() -> None:
    written = (ROOT / "docs/reference/conformance.md").read_text()
    heads = page({"respsite": told(), "vLLM": told()}, ENVIRONMENT)
    for line in heads.splitlines():
        if line.startswith("#") and line != "### vLLM":
            assert line in written, line
    known = {check.name for check in CHECKS}
    named = {line.split("`")[1] for line in written.splitlines() if line.startswith("| `")}
    assert named <= known
    for pain in PAINS.values():
        assert pain.text in written
