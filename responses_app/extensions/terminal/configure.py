"""`respsite configure AGENT`: print what a coding agent has to be told of a server, or write it into its own file.

Settings say what server that is, and it need not run. With `--url` it is another one, which is asked for its models
unless `--model` names one.
"""

import asyncio
import os
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from rich.table import Table
from rich.text import Text

from responses_app.command_line.endpoint import (
    KEY_VARIABLE,
    MAX_NUMBER,
    USAGE,
    CommandFailed,
    RemoteServer,
    endpoint_of,
    fetch,
    session_options,
)
from responses_app.extensions.terminal.agents import AGENTS, CodingAgent, TargetServer
from responses_app.management.terminal import console, errors, printable
from responses_app.observing.logs import as_one_line

MAX_NAME, MAX_URL = 200, 2000  # characters
MAX_MODELS = 32  # that are told; the same as MODELS takes
ASK_SECONDS = 10.0  # for a server's models
NO_NEED = "With --model nobody is asked."
HELP = "respsite configure AGENT prints what an agent has to be told, and --write puts it into its file."


def run(options: Namespace) -> int:
    """Print, or write; without an agent, tell which there are."""
    if options.agent is None:
        if options.write:
            raise CommandFailed("--write needs the name of an agent.", status=USAGE)
        _list()
        return 0
    agent = AGENTS[options.agent]
    target = _target(options)
    text = agent.text(target)
    if options.write:
        _write(agent, text, command=_without_write(options))
    else:
        sys.stdout.write(text)
        command = _without_write(options)
        if agent.place is None:
            said = f'for your shell\'s profile, or at once: eval "$({command})"'
        else:
            said = f"for {_shown_place(agent)}; --write puts it there, beside what else it holds"
        errors().print(f"{agent.title}: {said}.")
    others = len(target.models) - 1
    if options.model is None and others:
        named = printable(", ".join(target.models[1:]))
        errors().print(f"Model: {printable(target.model)}, the first of {others + 1}; --model takes another: {named}.")
    errors().print(f"Key: taken from {target.key_variable}, which may be unset where the server wants none.")
    return 0


def _target(options: Namespace) -> TargetServer:
    variable = options.key_variable
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):  # it becomes part of a shell command
        raise CommandFailed(f"--key-variable={variable!r} is not the name of an environment variable.", status=USAGE)
    server = endpoint_of(options.url, variable) if options.url else None
    url, models, context = server.base_url if server else "", [], None
    if options.model:
        models = [options.model]
    if server is None:
        url, own, context = _of_settings(options.model)
        models = models or own
    elif not models:
        found = asyncio.run(_asked(server))
        generating = [each for each in found if _generates(each)][:MAX_MODELS]
        if not generating:
            raise CommandFailed(f"{server.base_url} names no model that answers: name one with --model.")
        models, context = [each["id"] for each in generating], _length(generating[0].get("max_model_len"))
    for name in models:
        _check("model", name, MAX_NAME)
    _check("URL", url, MAX_URL)
    if "@" in urlsplit(url).netloc:
        raise CommandFailed("The URL has a name or a password in it, which would stand in a file.", status=USAGE)
    return TargetServer(
        base_url=url,
        models=tuple(models),
        context=options.context or context,
        key_variable=variable,
    )


def _of_settings(model: str | None) -> tuple[str, list[str], int | None]:
    """Return the URL of the server of the settings, its models, and the length of the one that is meant."""
    from responses_app.management.address import base_url
    from responses_app.settings.conf import ConfigurationError, from_environ

    try:
        own, _ = from_environ(os.environ)
    except ConfigurationError as error:
        raise CommandFailed(str(error)) from None
    meant = next((each for each in own.served if model is None or model in (each.name, *each.aliases)), None)
    length = _length(meant.options.get("max_model_len") if meant else None)
    return base_url(own), [each.name for each in own.served], length


def _generates(model: Mapping[str, Any]) -> bool:
    """Whether a model answers prompts; servers other than respsite do not say."""
    capabilities = model.get("capabilities")
    return not isinstance(capabilities, list) or "generate" in capabilities


def _length(value: object) -> int | None:
    """Return a model's length, None where it is not said as a number: vLLM takes texts, too, such as 128k."""
    return value if isinstance(value, int) and 1 < value <= MAX_NUMBER else None


async def _asked(server: RemoteServer) -> list[Mapping[str, Any]]:
    import aiohttp

    try:
        async with asyncio.timeout(ASK_SECONDS), aiohttp.ClientSession(**session_options(server)) as session:
            answer = await fetch(session, server, "/models")
    except TimeoutError:
        raise CommandFailed(f"{server.base_url} did not answer in {ASK_SECONDS:.0f} s. {NO_NEED}") from None
    except CommandFailed as problem:
        raise CommandFailed(f"{problem} {NO_NEED}") from None
    data = answer.get("data")
    models = [each for each in data if isinstance(each, Mapping)] if isinstance(data, list) else []
    return [each for each in models if isinstance(each.get("id"), str)]


def _check(what: str, text: str, most: int) -> None:
    """Refuse what agents do not take literally: they put variables and files in place of `$NAME` and `{file:…}`."""
    if not text or len(text) > most or as_one_line(text) != text or re.search(r"[${}]", text):
        raise CommandFailed(
            f"The {what} {as_one_line(text)[:most]!r} cannot be told to an agent: 1 to {most} characters that can "
            "be seen, without $ and braces.",
            status=USAGE,
        )


def _write(agent: CodingAgent, text: str, *, command: str) -> None:
    from responses_app.extensions.terminal.agent_files import place_of, write

    place = place_of(agent, os.environ)
    if place is None:
        raise CommandFailed(
            f"{agent.title} takes this from its environment alone, so there is no file to write: put what "
            f"`{command}` prints into your shell's profile.",
            status=USAGE,
        )
    done = write(agent, place, text)
    file = printable(str(done.file))
    if not done.is_changed:
        console().print(f"{file} says all that already.")
    elif done.backup is None:
        console().print(f"Wrote {file}.")
    else:
        console().print(f"Wrote {file}; as it was: {printable(str(done.backup))}")
    if done.replaced:
        console().print(f"Replaced: {', '.join(done.replaced)}; the backup has the old values.")
    for name in dict.fromkeys((*done.overruled_by, *(each for each in agent.overruled_by if os.environ.get(each)))):
        where = "in that file" if name in done.overruled_by else "in the environment"
        errors().print(f"{name} is set {where}, and {agent.title} sends that in place of the key: take it out.")


def _without_write(options: Namespace) -> str:
    """Return the command with the options that were given, as it prints and does not write."""
    given = [("--url", options.url), ("--model", options.model), ("--context", options.context)]
    if options.key_variable != KEY_VARIABLE:
        given.append(("--key-variable", options.key_variable))
    words = [word for name, value in given if value for word in (name, str(value))]
    return shlex.join(["respsite", "configure", options.agent, *words])


def _list() -> None:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for title in ("name", "agent", "API", "configured in"):
        table.add_column(title, overflow="fold")
    for agent in AGENTS.values():
        table.add_row(agent.name, agent.title, agent.speaks, Text(_shown_place(agent)))
    console().print(table)
    errors().print(HELP)


def _shown_place(agent: CodingAgent) -> str:
    """Return where an agent's file is, as a person writes it; nothing is written there now, so no home need be."""
    from responses_app.extensions.terminal.agent_files import place_of

    if agent.place is None:
        return "its environment"
    home = os.environ.get("HOME", "")
    try:
        place = printable(str(place_of(agent, os.environ)))
    except CommandFailed:
        return "its file"
    return f"~{place.removeprefix(home)}" if home and place.startswith(f"{home}/") else place
