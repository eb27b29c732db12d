"""`respsite conformance URL`: checks a server, tells the results, and returns 1 where a check has failed."""

import asyncio
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import aiohttp

from engine.errors import reason_of
from responses_app import __version__
from responses_app.command_line.endpoint import FAILED, USAGE, CommandFailed, RemoteServer, endpoint_of, session_options
from responses_app.extensions.conformance import (
    chats,
    inputs,
    json_answers,
    messages,
    state,
    streams,
    telling,
    tools,
    websocket,
)
from responses_app.extensions.conformance.checks import Check, CheckGroup, Result, run_checks
from responses_app.extensions.conformance.shapes import CheckVerdict, Unmet, Unreachable
from responses_app.extensions.conformance.talk import NOT_THERE, Server, Talk, attempt
from responses_app.management.terminal import console, progress

MAX_AT_ONCE = 64
GROUPS: Sequence[CheckGroup] = (
    json_answers.MODELS,
    json_answers.JSON_ANSWERS,
    streams.STREAMS,
    state.BACKGROUND,
    state.STATE,
    state.CONVERSATIONS,
    inputs.ITEMS,
    tools.TOOLS,
    tools.STRUCTURED,
    inputs.ERRORS,
    websocket.WEBSOCKET,
    chats.CHAT_COMPLETIONS,
    messages.MESSAGES,
)
CHECKS: Sequence[Check] = tuple(check for group in GROUPS for check in group.checks)


def chosen(words: Sequence[str]) -> list[Check]:
    """Return the checks that these names of groups or of checks mean, all of them without any.

    Raises `LookupError` with a name that means none.
    """
    names_of = {check: {check.name, telling.group_of(check)} for check in CHECKS}
    for word in words:
        if not any(word in names for names in names_of.values()):
            raise LookupError(word)
    return [check for check, names in names_of.items() if not words or names & set(words)]


def run(options: Namespace) -> int:
    """Check, tell, and return the exit status."""
    try:
        checks = chosen(options.only or ())
    except LookupError as unknown:
        groups = ", ".join(group.name for group in GROUPS)
        raise CommandFailed(f"--only {unknown.args[0]} is neither a check nor one of {groups}.", status=USAGE) from None
    if options.list:
        console().print(telling.listing(checks))
        return 0
    if options.base_url is None:
        raise CommandFailed("Name the server to check, by its base URL.", status=USAGE)
    if not 0 < options.at_once <= MAX_AT_ONCE or not options.seconds > 0:
        raise CommandFailed(f"--at-once takes 1 to {MAX_AT_ONCE}, and --seconds more than 0.", status=USAGE)
    endpoint = endpoint_of(options.base_url, options.key_variable)
    if options.key:
        endpoint = replace(endpoint, key=options.key)
    return _report(options, endpoint, checks)


def _report(options: Namespace, endpoint: RemoteServer, checks: Sequence[Check]) -> int:
    began = time.time()
    model, results = asyncio.run(_run(options, endpoint, checks))
    title = f"{endpoint.base_url}, model {model}, {time.strftime('%Y-%m-%d', time.gmtime(began))}"
    if options.junit:
        _write(options.junit, telling.as_junit(results, GROUPS, title))
    if options.json:
        day = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began))
        about = {"url": endpoint.base_url, "model": model, "respsite": __version__, "began": day}
        sys.stdout.write(telling.as_json(results, about))
    else:
        telling.tell(results, GROUPS, title)
    return FAILED if any(result.verdict is CheckVerdict.FAILED for result in results) else 0


async def _run(options: Namespace, endpoint: RemoteServer, checks: Sequence[Check]) -> tuple[str, list[Result]]:
    # A connection for each request: one that is kept may be closed while the next request is on its way.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(connector=connector, cookie_jar=jar, **session_options(endpoint)) as session:
        server = Server(session, endpoint, options.model or "", options.seconds)
        server.model = options.model or await _first_model(server)
        done = 0
        with progress("checks", len(checks)) as tell:

            def one_more(result: Result) -> None:
                nonlocal done
                done += 1
                tell(done)

            results = await run_checks(server, GROUPS, checks, at_once=options.at_once, tell=one_more)
    return server.model, results


async def _first_model(server: Server) -> str:
    """Return the first model that the server lists. Raises `CommandFailed` where none can be found."""
    advice = "Name one with --model."
    try:
        answer = await attempt(Talk(server).ask("GET", "/models"), server.seconds)
        if answer.status == 200:
            return str(answer.json["data"][0]["id"])
    except Unreachable as problem:
        raise CommandFailed(f"{server.endpoint.base_url} {telling.shown(str(problem))}. Check the URL.") from None
    except (Unmet, LookupError, TypeError) as problem:
        told = f"{problem}" if isinstance(problem, Unmet) else "the list of models has another form"
        raise CommandFailed(f"{server.endpoint.base_url}: {telling.shown(told)}. {advice}") from None
    if answer.status in NOT_THERE:
        raise CommandFailed(f"{server.endpoint.base_url} lists no models (it answered {answer.status}). {advice}")
    raise server.endpoint.refused(answer.status, telling.shown(answer.told))


def _write(path: str, content: bytes) -> None:
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written ({reason_of(error)}).") from None
