"""The page that `make conformance-table` prints: Markdown, with what respsite fails first."""

from collections.abc import Mapping, Sequence
from typing import Any

from responses_app.extensions.conformance.program import GROUPS
from responses_app.extensions.conformance.shapes import CheckVerdict
from responses_app.extensions.conformance.telling import PAINS, verdict_of

OURS = "respsite"
PIPE = "\\|"
MOST = 160  # characters of what came
MARKS = {
    CheckVerdict.PASSED: "✓",
    CheckVerdict.FAILED: "✗",
    CheckVerdict.ABSENT: "–",
    CheckVerdict.SKIPPED: "?",
    None: "·",
}
INTRODUCTION = """\
# Compatibility: respsite, vLLM, LiteLLM and agentic-api

This page compares how completely respsite and other servers implement OpenAI's Responses API, its WebSocket mode, Chat
Completions, and Anthropic's Messages, for readers who have to choose between them. `make conformance-table` prints it;
[`respsite conformance URL`](../how-to/command-line.md#conformance-tests) checks any other server.

Checked on {day}: respsite {respsite}, vLLM {vLLM} (its own server, on the CPU), LiteLLM {LiteLLM} (its proxy) and
agentic-api {agentic-api}. All are in front of one vLLM server. Its model has no weights and writes what the
checks need: a call where a call is forced, JSON where a schema asks for it. vLLM stores responses
(`VLLM_ENABLE_RESPONSES_API_STORE=1`) and parses tool calls (`--enable-auto-tool-choice --tool-call-parser openai`). The
others run with their defaults, except that LiteLLM's cooldown after errors is off.

A check **passes** or **fails**. It is **absent** if the server does not have what is checked: it answers 404 or 405,
does not upgrade to a WebSocket, or refuses an optional feature with a clear 400. It is **skipped** if a precondition
was not met; then the reason is given. No check depends on what a model says: if the model without weights violated
a grammar that a gateway sent, which a real model would not, the check is skipped.
"""
CLOSING = """\
## What the checks leave out

They are written from OpenAI's and Anthropic's documents and SDKs, by the people who make respsite: a check that we did
not think of is missing for all. They do not measure speed ([Benchmarks](../explanation/figures.md)), behaviour under
load, restarts, or the quality of what a tool finds. What OpenAI has and respsite does not is listed under
[Limitations](not-built.md): audio, stored prompts, moderation, batches, fine-tuning and more have no check
here.
"""
Told = Mapping[str, Mapping[str, Any]]  # what the program told as JSON, by the server


def page(told: Told, environment: Mapping[str, str]) -> str:
    introduction = INTRODUCTION.format_map(environment)
    others = [f"### {who}\n\n{_not_passed(told[who], ('failed',))}" for who in told if who != OURS]
    parts = [
        introduction,
        "## What respsite does not pass\n",
        _not_passed(told[OURS], ("failed", "absent", "skipped")),
        "## All servers\n",
        _groups(told),
        "## What users report\n\nThese are the problems that users of self-hosted servers report most often.\n",
        _pains(told),
        "## Failed checks of the other servers\n",
        *others,
        CLOSING,
    ]
    return "\n".join(parts).rstrip("\n")


def _not_passed(results: Mapping[str, Any], verdicts: tuple[str, ...]) -> str:
    rows = [
        f"| `{check['name']}` | {verdict} | {check['expected'].replace('|', PIPE)} | {cell(check['came'])} |"
        for verdict in verdicts
        for check in results["checks"]
        if check["verdict"] == verdict
    ]
    if not rows:
        return "Nothing.\n"
    return "\n".join(["| check | | expected | came |", "|---|---|---|---|", *rows, ""])


def cell(text: str) -> str:
    """Return text of a server's as a cell of a table, in which nothing is markup."""
    line = " ".join(text.split())
    line = line if len(line) <= MOST else f"{line[:MOST]} …"
    shown = "".join(each for each in line if each.isprintable())
    for mark in "\\|<>*_[]`~#$":
        shown = shown.replace(mark, f"\\{mark}")
    return shown


def _mark(checks: Sequence[Mapping[str, Any]], pain: str) -> str:
    verdict = verdict_of([CheckVerdict(check["verdict"]) for check in checks if check["pain"] == pain])
    return MARKS[verdict]


def _groups(told: Told) -> str:
    lines = [f"| passed of those tried, and absent | {' | '.join(told)} |", "|---|" + "---:|" * len(told)]
    for group in GROUPS:
        cells = (_counted([each for each in told[who]["checks"] if _is_of(each, group.name)]) for who in told)
        lines.append(f"| {group.title} | {' | '.join(cells)} |")
    whole = (f"**{_counted(results['checks'])}**" for results in told.values())
    lines.append(f"| **all** | {' | '.join(whole)} |")
    return "\n".join([*lines, ""])


def _is_of(check: Mapping[str, Any], group: str) -> bool:
    return bool(check["name"].startswith(f"{group}."))


def _counted(checks: list[Mapping[str, Any]]) -> str:
    verdicts = [check["verdict"] for check in checks]
    passed, tried = verdicts.count("passed"), verdicts.count("passed") + verdicts.count("failed")
    absent = verdicts.count("absent")
    if not tried:
        return "–"
    return f"{passed}/{tried}" + (f", {absent} –" if absent else "")


def _pains(told: Told) -> str:
    lines = [f"| | {' | '.join(told)} |", "|---|" + ":---:|" * len(told)]
    for key, pain in PAINS.items():
        marks = (_mark(told[who]["checks"], key) for who in told)
        lines.append(f"| {pain.text} | {' | '.join(marks)} |")
    unseen = [f"{pain.text}: {pain.unseen}" for pain in PAINS.values() if pain.unseen]
    legend = "✓ does not happen, ✗ happens, – the server lacks what it is about, ? could not be tried"
    return "\n".join([*lines, "", f"{legend}, · cannot be checked over the API ({'; '.join(unseen)}).", ""])
