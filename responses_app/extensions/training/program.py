"""`respsite rollouts list|show|reward|end|delete`: what a server has of roll-outs, as JSON, a line for each.

`respsite rollouts export FILE` writes them in the format of a trainer, into one file of any size. JSON Lines are
written as they come. `--resume` drops the rows of the last roll-out, which may not be all there, and goes on behind the
one before it. A file of Parquet is there once it is whole.
"""

import asyncio
import json
import re
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import aiohttp

from engine.errors import reason_of
from responses_app.command_line.endpoint import (
    USAGE,
    CommandFailed,
    RemoteServer,
    body_of,
    endpoint_of,
    fetch,
    session_options,
)
from responses_app.management.terminal import errors, progress

PAGE = 100  # roll-outs that are asked for at once


def run(options: Namespace) -> int:
    """Do what is asked, and print what the server answers."""
    return asyncio.run(_run(options))


async def _run(options: Namespace) -> int:
    server = endpoint_of(options.url, options.key_variable)
    async with aiohttp.ClientSession(**session_options(server)) as session:
        if options.action == "list":
            await _list(session, server, options)
            return 0
        # A URL's reserved characters in an id would ask for something else: the server says that it is none.
        path = f"/rollouts/{quote(options.id, safe='')}"
        match options.action:
            case "show":
                asked = fetch(session, server, path, params={"tree": str(options.tree).lower()})
            case "reward":
                body = {"reward": options.reward, **({"turn": options.turn} if options.turn else {})}
                asked = fetch(session, server, f"{path}/reward", "POST", json=body)
            case "end":
                asked = fetch(session, server, f"{path}/end", "POST")
            case _:
                asked = fetch(session, server, path, "DELETE")
        _print(await asked)
    return 0


async def _list(session: aiohttp.ClientSession, server: RemoteServer, options: Namespace) -> None:
    """Print roll-outs, the newest first, as many as are wanted. Raises `CommandFailed` for what is not a list."""
    left, after = options.limit, None
    while left > 0:
        params = {"limit": str(min(PAGE, left)), "group": options.group, "after": after}
        known = {name: value for name, value in params.items() if value is not None}
        page = await fetch(session, server, "/rollouts", params=known)
        data, after = page.get("data"), page.get("last_id")
        if not isinstance(data, list) or not isinstance(after, str):
            raise CommandFailed(f"{server.base_url}/rollouts did not answer with a list of roll-outs.")
        for rollout in data:
            _print(rollout)
        left -= len(data)
        if not page.get("has_more") or not data:
            return


def _print(answer: Any) -> None:
    # In ASCII: clients name groups and write metadata, and a terminal obeys some characters.
    sys.stdout.write(json.dumps(answer) + "\n")


PARQUET = "parquet"
# What the command calls otherwise than the API: `--version` is a program's own.
PARAMETERS: Mapping[str, str] = {
    "format": "format",
    "file_type": "file_type",
    "after": "after",
    "group": "group",
    "status": "status",
    "weights": "version",
    "min_reward": "min_reward",
    "max_reward": "max_reward",
    "created_after": "created_after",
    "created_before": "created_before",
}
_ROW = re.compile(rb'\{"(?:rollout_id|id)":"([A-Za-z0-9._:-]{1,128})"')  # the beginning of every row


def run_export(options: Namespace) -> int:
    """Write the file."""
    params = {
        name: str(value) for option, name in PARAMETERS.items() if (value := getattr(options, option)) is not None
    }
    if options.file == "-":
        asyncio.run(_download(options, params, sys.stdout.buffer))
        return 0
    path = Path(options.file)
    part = _part_of(path, options)
    try:
        with part.open("r+b" if options.resume and part.exists() else "wb") as file:
            last = whole_rollouts(file) if options.resume else None
            asyncio.run(_download(options, params if last is None else {**params, "after": last}, file))
        part.replace(path)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written ({reason_of(error)}).") from None
    errors().print(f"Wrote {path}.")
    return 0


def _part_of(path: Path, options: Namespace) -> Path:
    """Return the file that is written first. Raises `CommandFailed` where it is not to be written."""
    if path.exists() and not options.resume:
        raise CommandFailed(f"{path} is there already: --resume goes on with it, or name another file.", status=USAGE)
    if options.file_type != PARQUET:
        return path
    if options.resume:
        raise CommandFailed(
            "A file of Parquet cannot be resumed. Write another one with --after and the id of the last roll-out.",
            status=USAGE,
        )
    return path.with_name(f"{path.name}.part")


def whole_rollouts(file: BinaryIO) -> str | None:
    """Cut a file behind the last roll-out whose rows are all there; return its id. Raises `CommandFailed`."""
    last, before, begin, offset = None, None, 0, 0
    for line in file:
        row = _ROW.match(line)
        if row is None or not line.endswith(b"\n"):
            if offset == 0 and line.endswith(b"\n"):
                raise CommandFailed("This file was not written by `respsite rollouts export`.", status=USAGE)
            break
        name = row[1].decode()
        if name != last:
            last, before, begin = name, last, offset
        offset += len(line)
    file.seek(begin)
    file.truncate()
    return before


async def _download(options: Namespace, params: Mapping[str, str], file: BinaryIO) -> None:
    server, count = endpoint_of(options.url, options.key_variable), 0
    try:
        async with (
            aiohttp.ClientSession(**session_options(server)) as session,
            session.get(f"{server.base_url}/rollouts/export", params=params) as answer,
        ):
            if answer.status != 200:
                raise server.refused(answer.status, await body_of(answer))
            with progress("bytes exported", None) as tell:
                async for chunk in answer.content.iter_any():
                    file.write(chunk)
                    count += len(chunk)
                    tell(count)
        file.flush()
    except aiohttp.ClientPayloadError:
        raise CommandFailed("The export ended early: its connection broke. --resume goes on with the file.") from None
    except aiohttp.ClientError as error:
        raise server.unreachable(error) from None
