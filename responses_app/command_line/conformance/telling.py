"""Tells what came of the checks: as a table for a terminal, as JSON, as JUnit's XML.

What a server sent is untrusted: it has no control characters here, and nothing in it is read as markup.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from rich.table import Table
from rich.text import Text

from responses_app.command_line.conformance.asking.checks import Check, Group, Result
from responses_app.command_line.conformance.asking.verdicts import Verdict
from responses_app.command_line.conformance.pains import PAINS, verdict_of
from responses_app.management.terminal import console
from responses_app.observing.logs import as_one_line

MARKS = {
    Verdict.PASSED: ("✓", "green"),
    Verdict.FAILED: ("✗", "red"),
    Verdict.ABSENT: ("–", "yellow"),
    Verdict.SKIPPED: ("?", "yellow"),
}
MAX_SHOWN = 600  # characters of a text in the terminal
# What XML 1.0 has no place for.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def shown(text: str) -> str:
    """Return text of others as a line for a terminal."""
    # Half of a surrogate pair cannot be written at all.
    whole = text.encode(errors="replace").decode()
    return as_one_line(whole if len(whole) <= MAX_SHOWN else f"{whole[:MAX_SHOWN]} …")


def counts_of(results: Sequence[Result]) -> dict[str, int]:
    """Return how many checks have each verdict."""
    counted = Counter(result.verdict for result in results)
    return {verdict.value: counted[verdict] for verdict in Verdict}


def group_of(check: Check) -> str:
    """Return the name of a check's group."""
    return check.name.partition(".")[0]


def tell(results: Sequence[Result], groups: Sequence[Group], title: str) -> None:
    """Show failures, then what is absent or skipped, and the groups' figures at the end."""
    output = console()
    for verdict in (Verdict.FAILED, Verdict.ABSENT, Verdict.SKIPPED):
        for result in results:
            if result.verdict is verdict:
                _tell_one(result)
    output.print(Text(f"\n{shown(title)}", "bold"))
    output.print(summary(results, groups))
    output.print(pains_table(results))


def _tell_one(result: Result) -> None:
    output, (mark, style) = console(), MARKS[result.verdict]
    line = Text.assemble((mark, style), " ", (result.check.name, "bold"), " ")
    if result.verdict is not Verdict.FAILED:
        output.print(line.append(shown(result.came), "dim"))
        return
    output.print(line)
    told = [("expected", result.check.rule), ("came", result.came), ("source", result.check.source)]
    for exchange in result.exchanges[-1:]:
        status = f" → {exchange.status}" if exchange.status is not None else ""
        told.insert(1, ("sent", f"{exchange.sent} {exchange.body}{status}"))
    for name, text in told:
        output.print(Text.assemble(("    " + name.ljust(9), "dim"), shown(text)))


def summary(results: Sequence[Result], groups: Sequence[Group]) -> Table:
    """Return the groups with their figures."""
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("checks of")
    for verdict in (Verdict.PASSED, Verdict.FAILED, Verdict.ABSENT, Verdict.SKIPPED):
        table.add_column(verdict.value, justify="right")
    for group in groups:
        own = [result for result in results if group_of(result.check) == group.name]
        if own:
            _add(table, group.title, own)
    _add(table, "all", results)
    return table


def _add(table: Table, title: str, results: Sequence[Result]) -> None:
    counts = counts_of(results)
    cells = []
    for verdict in (Verdict.PASSED, Verdict.FAILED, Verdict.ABSENT, Verdict.SKIPPED):
        count = counts[verdict]
        cells.append(Text(str(count) if count else "·", MARKS[verdict][1] if count else "dim"))
    table.add_row(Text(title), *cells)


def pains_of(results: Sequence[Result]) -> dict[str, Verdict | None]:
    """Return for each pain what its checks say together; None where no check can tell."""
    return {key: verdict_of([result.verdict for result in results if result.check.pain == key]) for key in PAINS}


def pains_table(results: Sequence[Result]) -> Table:
    """Return what users report, and whether it is so here."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, title="What users report", title_justify="left")
    table.add_column("")
    table.add_column("")
    for key, verdict in pains_of(results).items():
        mark, style = MARKS[verdict] if verdict else ("·", "dim")
        why = f" ({PAINS[key].unseen})" if PAINS[key].unseen else ""
        table.add_row(Text(mark, style), Text(PAINS[key].text + why))
    return table


def as_json(results: Sequence[Result], about: Mapping[str, Any]) -> str:
    """Return the results as JSON, in ASCII, so that a terminal can show it."""
    checks = [
        {
            "name": result.check.name,
            "verdict": result.verdict.value,
            "expected": result.check.rule,
            "came": result.came,
            "source": result.check.source,
            "pain": result.check.pain or None,
            "seconds": round(result.seconds, 3),
            "exchanges": [
                {"sent": each.sent, "body": each.body, "status": each.status, "came": each.came}
                for each in result.exchanges
            ],
        }
        for result in results
    ]
    pains = {
        key: {
            "text": PAINS[key].text,
            "verdict": verdict.value if verdict else None,
            "unseen": PAINS[key].unseen or None,
        }
        for key, verdict in pains_of(results).items()
    }
    whole = {**about, "counts": counts_of(results), "pains": pains, "checks": checks}
    return json.dumps(whole, indent=2).replace("\x7f", "\\u007f") + "\n"


def as_junit(results: Sequence[Result], groups: Sequence[Group], title: str) -> bytes:
    """Return the results as JUnit's XML: what is absent counts as skipped."""
    root = ElementTree.Element("testsuites", name=_xml(title))
    for group in groups:
        own = [result for result in results if group_of(result.check) == group.name]
        if own:
            _suite(root, group, own)
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written


def _suite(root: ElementTree.Element, group: Group, results: Sequence[Result]) -> None:
    counts = counts_of(results)
    figures = {
        "name": group.title,
        "tests": str(len(results)),
        "failures": str(counts["failed"]),
        "errors": "0",
        "skipped": str(counts["absent"] + counts["skipped"]),
        "time": f"{sum(result.seconds for result in results):.3f}",
    }
    suite = ElementTree.SubElement(root, "testsuite", figures)
    for result in results:
        named = {"classname": f"conformance.{group.name}", "name": result.check.name, "time": f"{result.seconds:.3f}"}
        case = ElementTree.SubElement(suite, "testcase", named)
        if result.verdict is Verdict.FAILED:
            failure = ElementTree.SubElement(case, "failure", message=_xml(result.came))
            failure.text = _xml(_whole(result))
        elif result.verdict is not Verdict.PASSED:
            ElementTree.SubElement(case, "skipped", message=_xml(f"{result.verdict}: {result.came}"))


def _whole(result: Result) -> str:
    lines = [f"expected: {result.check.rule}", f"came: {result.came}", f"source: {result.check.source}"]
    for each in result.exchanges:
        lines.append(f"{each.sent} {each.body} → {each.status or ''} {each.came}")
    return "\n".join(lines)


def _xml(text: str) -> str:
    return _NO_XML.sub("�", text)


def listing(checks: Sequence[Check]) -> Table:
    """Return the checks, each with its rule and its source."""
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for heading in ("check", "rule", "source"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        table.add_row(Text(check.name, "bold"), Text(check.rule), Text(check.source, "dim"))
    return table
