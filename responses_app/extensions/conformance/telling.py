"""Tells the results of the checks: as a table for a terminal, as JSON, as JUnit's XML.

What a server sent is untrusted: it has no control characters here, and nothing in it is read as markup.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from rich.table import Table
from rich.text import Text

from responses_app.extensions.conformance.checks import Check, CheckGroup, Result
from responses_app.extensions.conformance.shapes import CheckVerdict
from responses_app.management.terminal import console
from responses_app.observing.logs import as_one_line


@dataclass(frozen=True, slots=True)
class Pain:
    """Something that users report."""

    text: str
    unseen: str = ""  # why no check can see it; "" where one can


# Problems that users of self-hosted servers report again and again. A check names its own by the key.
PAINS = {
    "harmony-parser": Pain("the Harmony parser answers 500 or 503"),
    "header-tokens": Pain("unexpected tokens in a header end the request"),
    "malformed-calls": Pain("malformed calls of gpt-oss"),
    "second-turn": Pain("the second turn fails"),
    "state-in-dicts": Pain("state is kept in dicts of one process"),
    "parent-while-streaming": Pain("previous_response_id is lost while streaming"),
    "no-websocket": Pain("no WebSocket, so Codex retries for 5 to 10 seconds"),
    "namespaces": Pain("namespaces break gateways"),
    "other-tools": Pain("tools that are not functions are refused"),
    "apply-patch": Pain("apply_patch is absent on other models"),
    "changing-header": Pain("a changing header empties the prefix cache"),
    "dropped-reasoning": Pain("dropped reasoning empties the prefix cache"),
    "swallowed-errors": Pain("errors in the middle of a stream are swallowed"),
    "unusable-state": Pain("user interfaces cannot use the server's state"),
    "paid-sign-on": Pain("single sign-on is behind a paywall", unseen="an answer of the API does not show it"),
}


def verdict_of(verdicts: Collection[CheckVerdict]) -> CheckVerdict | None:
    """Return what the checks of a pain say together; None without any.

    One that fails is enough; what is absent counts only where nothing could be tried.
    """
    order = (CheckVerdict.FAILED, CheckVerdict.PASSED, CheckVerdict.ABSENT, CheckVerdict.SKIPPED)
    return min(verdicts, key=order.index, default=None)


MARKS = {
    CheckVerdict.PASSED: ("✓", "green"),
    CheckVerdict.FAILED: ("✗", "red"),
    CheckVerdict.ABSENT: ("–", "yellow"),
    CheckVerdict.SKIPPED: ("?", "yellow"),
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
    return {verdict.value: counted[verdict] for verdict in CheckVerdict}


def group_of(check: Check) -> str:
    """Return the name of a check's group."""
    return check.name.partition(".")[0]


def tell(results: Sequence[Result], groups: Sequence[CheckGroup], title: str) -> None:
    """Show failures, then what is absent or skipped, and the groups' figures at the end."""
    output = console()
    for verdict in (CheckVerdict.FAILED, CheckVerdict.ABSENT, CheckVerdict.SKIPPED):
        for result in results:
            if result.verdict is verdict:
                _tell_one(result)
    output.print(Text(f"\n{shown(title)}", "bold"))
    output.print(summary(results, groups))
    output.print(pains_table(results))


def _tell_one(result: Result) -> None:
    output, (mark, style) = console(), MARKS[result.verdict]
    line = Text.assemble((mark, style), " ", (result.check.name, "bold"), " ")
    if result.verdict is not CheckVerdict.FAILED:
        output.print(line.append(shown(result.came), "dim"))
        return
    output.print(line)
    told = [("expected", result.check.rule), ("came", result.came), ("source", result.check.source)]
    for exchange in result.exchanges[-1:]:
        status = f" → {exchange.status}" if exchange.status is not None else ""
        told.insert(1, ("sent", f"{exchange.sent} {exchange.body}{status}"))
    for name, text in told:
        output.print(Text.assemble(("    " + name.ljust(9), "dim"), shown(text)))


def summary(results: Sequence[Result], groups: Sequence[CheckGroup]) -> Table:
    """Return the groups with their figures."""
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("checks of")
    for verdict in (CheckVerdict.PASSED, CheckVerdict.FAILED, CheckVerdict.ABSENT, CheckVerdict.SKIPPED):
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
    for verdict in (CheckVerdict.PASSED, CheckVerdict.FAILED, CheckVerdict.ABSENT, CheckVerdict.SKIPPED):
        count = counts[verdict]
        cells.append(Text(str(count) if count else "·", MARKS[verdict][1] if count else "dim"))
    table.add_row(Text(title), *cells)


def pains_of(results: Sequence[Result]) -> dict[str, CheckVerdict | None]:
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


def as_junit(results: Sequence[Result], groups: Sequence[CheckGroup], title: str) -> bytes:
    """Return the results as JUnit's XML: what is absent counts as skipped."""
    root = ElementTree.Element("testsuites", name=_xml(title))
    for group in groups:
        own = [result for result in results if group_of(result.check) == group.name]
        if own:
            _suite(root, group, own)
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written


def _suite(root: ElementTree.Element, group: CheckGroup, results: Sequence[Result]) -> None:
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
        if result.verdict is CheckVerdict.FAILED:
            failure = ElementTree.SubElement(case, "failure", message=_xml(result.came))
            lines = [f"expected: {result.check.rule}", f"came: {result.came}", f"source: {result.check.source}"]
            for each in result.exchanges:
                lines.append(f"{each.sent} {each.body} → {each.status or ''} {each.came}")
            failure.text = _xml("\n".join(lines))
        elif result.verdict is not CheckVerdict.PASSED:
            ElementTree.SubElement(case, "skipped", message=_xml(f"{result.verdict}: {result.came}"))


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
