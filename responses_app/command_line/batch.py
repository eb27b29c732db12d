"""`respsite batch run FILE`: a batch from its file to its output. `--batch ID` goes on with one that was created.

What has ended is written to files beside FILE: `FILE.output.jsonl`, and `FILE.errors.jsonl` where lines have failed.
"""

import asyncio
import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import aiohttp

from engine.errors import reason_of
from responses_app.command_line.endpoint import (
    FAILED,
    USAGE,
    CommandFailed,
    RemoteServer,
    body_of,
    endpoint_of,
    fetch,
    session_options,
)
from responses_app.management.terminal import errors, printable, progress

ENDED = ("failed", "completed", "expired", "cancelled")
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0  # seconds between two looks at a batch
TRIES = 20  # looks at a batch that fail in a row, while its server starts again, say
SHOWN = 10  # errors of an input
MAX_FIRST_LINE = 64 << 20  # bytes of the first line, which names the endpoint


def run(options: Namespace) -> int:
    """Run it, and return 1 where it did not complete, or lines of it have failed."""
    path = Path(options.file)
    output = Path(options.output or f"{options.file}.output.jsonl")
    failed = Path(options.errors or f"{options.file}.errors.jsonl")
    for each in (output, failed):
        if each.exists():
            raise CommandFailed(f"{each} is there already. Move it, or name another file.", status=USAGE)
    return asyncio.run(_run(options, path, output, failed))


async def _run(options: Namespace, path: Path, output: Path, failed: Path) -> int:
    server = endpoint_of(options.url, options.key_variable)
    async with aiohttp.ClientSession(**session_options(server)) as session:
        if options.batch is None:
            endpoint = options.endpoint or endpoint_in(path)
            batch = await _created(session, server, path, endpoint)
            errors().print(f"Batch {batch['id']}: go on with `respsite batch run {path} --batch {batch['id']}`.")
        else:
            batch = await fetch(session, server, f"/batches/{options.batch}")
        batch = await _followed(session, server, batch)
        for name, target in (("output_file_id", output), ("error_file_id", failed)):
            if batch[name]:
                await _download(session, server, batch[name], target)
                errors().print(f"Wrote {target}.")
    return _tell(batch)


def endpoint_in(path: Path) -> str:
    """Return the endpoint that the first line of an input names. Raises `CommandFailed`."""
    try:
        with path.open("rb") as file:
            first = next((line for line in iter(lambda: file.readline(MAX_FIRST_LINE), b"") if line.strip()), b"")
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read ({reason_of(error)}).") from None
    try:
        url = json.loads(first)["url"]
    except (ValueError, TypeError, LookupError):
        url = None
    if not isinstance(url, str):
        raise CommandFailed(
            f"{path} does not begin with a line of a batch, such as "
            '{"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {…}}.',
            status=USAGE,
        )
    return url


async def _created(session: aiohttp.ClientSession, server: RemoteServer, path: Path, endpoint: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            form = aiohttp.FormData({"purpose": "batch"})
            form.add_field("file", file, filename=path.name)
            errors().print(f"Uploading {path} ({os.fstat(file.fileno()).st_size:,} bytes) …")
            uploaded = await fetch(session, server, "/files", "POST", data=form)
    except OSError as error:
        if isinstance(error, aiohttp.ClientError):
            raise
        raise CommandFailed(f"{path} cannot be read ({reason_of(error)}).") from None
    asked = {"input_file_id": uploaded["id"], "endpoint": endpoint, "completion_window": "24h"}
    return await fetch(session, server, "/batches", "POST", json=asked)


async def _followed(session: aiohttp.ClientSession, server: RemoteServer, batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch once it has ended, and show how far it is until then."""
    path, pause = f"/batches/{batch['id']}", FIRST_PAUSE
    while batch["status"] == "validating":
        await asyncio.sleep(pause)
        batch = await _looked(session, server, path)
    counts = batch["request_counts"]
    with progress("requests answered", counts["total"] or None) as tell:
        while batch["status"] not in ENDED:
            counts = batch["request_counts"]
            tell(counts["completed"] + counts["failed"])
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 1.5)
            batch = await _looked(session, server, path)
    return batch


async def _looked(session: aiohttp.ClientSession, server: RemoteServer, path: str) -> dict[str, Any]:
    for tries in range(TRIES):
        try:
            return await fetch(session, server, path)
        except CommandFailed:
            if tries == TRIES - 1:
                raise
            await asyncio.sleep(1.0)
    raise AssertionError("the last try returns or raises")


async def _download(session: aiohttp.ClientSession, server: RemoteServer, file_id: str, target: Path) -> None:
    """Write a file, which is there once it is whole."""
    part = target.with_name(f"{target.name}.part")
    try:
        async with session.get(f"{server.base_url}/files/{file_id}/content") as answer:
            if answer.status != 200:
                raise server.refused(answer.status, await body_of(answer))
            with part.open("wb") as file:
                async for chunk in answer.content.iter_any():
                    file.write(chunk)
        part.replace(target)
    except aiohttp.ClientError as error:
        raise server.unreachable(error) from None
    except OSError as error:
        raise CommandFailed(f"{target} cannot be written ({reason_of(error)}).") from None


def _tell(batch: dict[str, Any]) -> int:
    counts = batch["request_counts"]
    errors().print(
        f"Batch {batch['id']} is {batch['status']}: {counts['completed']:,} of {counts['total']:,} requests "
        f"succeeded, {counts['failed']:,} failed."
    )
    problems = (batch["errors"] or {}).get("data") or []
    for each in problems[:SHOWN]:
        place = f"Line {each['line']}" if each["line"] else "The input"
        errors().print(printable(f"{place}: {each['message']}"))
    if len(problems) > SHOWN:
        errors().print(f"… and {len(problems) - SHOWN:,} more.")
    return 0 if batch["status"] == "completed" and not counts["failed"] else FAILED
