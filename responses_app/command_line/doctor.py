"""`respsite doctor`: what is wrong with this installation and what to do, in order. It ends within some 5 seconds."""

import asyncio
import json
import logging
import os
import sys
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence

from rich.table import Table
from rich.text import Text

from responses_app import __version__
from responses_app.command_line.endpoint import FAILED
from responses_app.kit.extension import extensions
from responses_app.kit.findings import Finding, Severity, problem, warning
from responses_app.management.terminal import console, printable, progress
from responses_app.settings.conf import ConfigurationError, Settings, from_environ

Check = Callable[[Settings, float], Awaitable[Sequence[Finding]]]
# What to look at where a check gets no answer, by its name.
HANGING = {
    "database": "Check that what DATABASE_URL names runs, and that a firewall lets this machine in.",
    "redis": "Check that what REDIS_URL names runs, and that a firewall lets this machine in.",
    "engine": "Look at the log of the engines that ENGINE_URL, MODELS and EMBEDDINGS_URL name.",
    "search": "Look at the log of what SEARCH_URL names.",
    "sign-on": "Check that what OIDC_ISSUER names runs, and that a firewall lets this machine out.",
    "tools": "Look at the log of the servers that MCP_SERVERS and IMAGE_SERVICE_URL name.",
}
MARKS = {Severity.OK: ("✓", "green"), Severity.WARNING: ("!", "yellow"), Severity.PROBLEM: ("✗", "red")}


def run(options: Namespace) -> int:
    """Look, tell, and return 1 where something is broken."""
    began = time.monotonic()
    findings = _settings() or asyncio.run(_examine(options.seconds))
    # The order of `Severity` is that of how bad it is.
    worst = max(findings, key=lambda each: list(Severity).index(each.level)).level
    seconds = time.monotonic() - began
    if options.json:
        entries = [
            {"level": each.level.value, "subject": each.subject, "text": each.text, "advice": each.advice}
            for each in findings
        ]
        whole = {"status": worst.value, "version": __version__, "seconds": round(seconds, 2), "findings": entries}
        sys.stdout.write(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
    else:
        _tell(findings, seconds)
    return FAILED if worst is Severity.PROBLEM else 0


def _settings() -> list[Finding]:
    """Read the settings; return what is wrong with them, where nothing else can be looked at."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "respsite.settings")
    try:
        from_environ(os.environ)
        import django

        django.setup(set_prefix=False)
    except (ConfigurationError, SystemExit) as error:
        text = str(error).removeprefix("respsite: ")
        return [problem("settings", text, "Mend this setting; the rest is looked at then.")]
    logging.disable(logging.CRITICAL)  # what checks find is told below
    return []


async def _examine(seconds: float) -> list[Finding]:
    from django.conf import settings as django_settings

    from responses_app.command_line import checks

    looks: dict[str, Check] = {
        "versions": checks.versions,
        "database": checks.database,
        "redis": checks.redis,
        "disk": checks.disk,
        "engine": checks.engines,
        "file search": checks.file_search,
        "address": checks.address,
        "keys": checks.exposure,
        "limits": checks.limits,
        **{name: look for extension in extensions() for name, look in extension.looks().items()},
        "search": checks.search,
        "sign-on": checks.sign_on,
        "tools": checks.tools,
        "extensions": checks.loaded,
    }
    settings: Settings = django_settings.RESPSITE
    doubts = [warning("settings", text, "Mend this setting.") for text in django_settings.RESPSITE_WARNINGS]
    ended = 0
    with progress("checks", len(looks)) as tell:

        async def one(name: str, check: Check) -> Sequence[Finding]:
            nonlocal ended
            findings = await _checked(name, check(settings, seconds), seconds)
            ended += 1
            tell(ended)
            return findings

        # All at once, so that it takes as long as the slowest.
        reports = await asyncio.gather(*(one(name, check) for name, check in looks.items()))
    return [*doubts, *(finding for findings in reports for finding in findings)]


async def _checked(name: str, check: Awaitable[Sequence[Finding]], seconds: float) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(seconds):
            return await check
    except TimeoutError:
        advice = HANGING.get(name, "This machine may be too busy to look at it.")
        return [warning(name, f"no answer within {seconds:.1f} s", f"{advice} --seconds gives it more time.")]


def _tell(findings: Sequence[Finding], seconds: float) -> None:
    output = console()
    table = Table.grid(padding=(0, 2))
    for each in findings:
        mark, style = MARKS[each.level]
        table.add_row(Text(mark, style), Text(each.subject), Text(printable(each.text)))
    output.print(table)
    to_do = [each for level in (Severity.PROBLEM, Severity.WARNING) for each in findings if each.level is level]
    if not to_do:
        output.print(f"\nNothing is wrong ({seconds:.1f} s).")
        return
    output.print(f"\nWhat to do, in this order ({seconds:.1f} s):")
    for number, each in enumerate(to_do, 1):
        output.print(printable(f"{number}. {each.subject}: {each.text.rstrip('.')}. {each.advice}"))
