"""`respsite bench URL`: how fast a server streams, at so many requests at once; bounded in count and in time.

Any server with OpenAI's Responses API or Chat Completions can be measured.
"""

import asyncio
import json
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import aiohttp

from responses_app import __version__
from responses_app.command_line.base.endpoint import Endpoint, endpoint_of, session_options
from responses_app.command_line.base.exits import FAILED, USAGE, CommandFailed
from responses_app.command_line.base.terminal import console, errors, printable
from responses_app.command_line.benchmarking.asking import APIS, Api, Sample, ask
from responses_app.command_line.benchmarking.figures import Figures, figures_of
from responses_app.command_line.benchmarking.picture import bars_of, svg_of, table_of

MAX_CONCURRENT = 1000
MAX_REQUESTS = 100_000
TRY_SECONDS = 120.0  # for the first request, which nothing counts


def run(options: Namespace) -> int:
    """Measure, show, and return 1 where nothing could be measured."""
    levels = _levels(options.concurrency)
    if not 0 < options.requests <= MAX_REQUESTS:
        raise CommandFailed(f"--requests takes a number up to {MAX_REQUESTS}.", status=USAGE)
    endpoint = endpoint_of(options.base_url, options.key_variable)
    figures, problems = asyncio.run(_measure(options, endpoint, levels))
    title = f"{endpoint.base_url}, {APIS[options.api].path}"
    if options.json != "-":  # else standard output is for a program
        console().print(table_of(figures))
        console().print(bars_of(figures))
    for text, count in problems.items():
        errors().print(printable(f"{count} × {text}"))
    if options.svg:
        _write(options.svg, svg_of(figures, title=title))
    if options.json:
        told = {"url": endpoint.base_url, "api": options.api, "model": options.model, "respsite": __version__}
        _write(options.json, json.dumps({**told, "levels": [asdict(row) for row in figures]}, indent=2) + "\n")
    return 0 if any(row.requests > row.errors for row in figures) else FAILED


def _levels(text: str) -> list[int]:
    try:
        levels = [int(word) for word in text.split(",")]
    except ValueError:
        levels = []
    if not levels or not all(0 < level <= MAX_CONCURRENT for level in levels):
        wanted = f"numbers up to {MAX_CONCURRENT}, separated by commas"
        raise CommandFailed(f"--concurrency {text} is not valid: it takes {wanted}.", status=USAGE)
    return levels


async def _measure(
    options: Namespace, endpoint: Endpoint, levels: Sequence[int]
) -> tuple[list[Figures], dict[str, int]]:
    api = APIS[options.api]
    figures: list[Figures] = []
    problems: dict[str, int] = {}
    connector = aiohttp.TCPConnector(limit=max(levels))
    async with aiohttp.ClientSession(connector=connector, **session_options(endpoint)) as session:
        load = Load(session, endpoint, api, options)
        await load.try_once()
        for level in levels:
            errors().print(f"{level} at once …", style="dim")
            began = time.perf_counter()
            samples = await load.run(level)
            figures.append(figures_of(level, samples, time.perf_counter() - began))
            for sample in samples:
                if sample.error:
                    problems[sample.error] = problems.get(sample.error, 0) + 1
    return figures, problems


class Load:
    """Requests of one kind. Each has a number in its prompt's beginning, so that no prefix cache holds it."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: Endpoint, api: Api, options: Namespace) -> None:
        self._session, self._endpoint, self._api, self._options = session, endpoint, api, options
        self._number = 0

    async def try_once(self) -> None:
        """Ask once, uncounted: it warms the server up. Raises `CommandFailed` where it cannot be measured."""
        try:
            async with asyncio.timeout(TRY_SECONDS):
                sample = await self._ask()
        except TimeoutError:
            raise CommandFailed(f"{self._endpoint.base_url} did not answer within {TRY_SECONDS:.0f} s.") from None
        if sample.error:
            raise CommandFailed(sample.error)

    async def run(self, level: int) -> list[Sample]:
        """Keep `level` requests going, until there were enough of them or their time is over; return their samples.

        What runs at the end of the time is cut, and does not count.
        """
        samples: list[Sample] = []
        wanted = max(self._options.requests, level)
        begun = 0

        async def client() -> None:
            nonlocal begun
            while begun < wanted:
                begun += 1
                samples.append(await self._ask())

        tasks = [asyncio.create_task(client(), name="client of the bench") for _ in range(level)]
        _, late = await asyncio.wait(tasks, timeout=self._options.seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return samples

    async def _ask(self) -> Sample:
        self._number += 1
        prompt = f"{self._number}: {self._options.prompt}"
        body = self._api.body(prompt, self._options.model, self._options.max_tokens)
        return await ask(self._session, self._endpoint, self._api, body)


def _write(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written ({error.strerror}).") from None
