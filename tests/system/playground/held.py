"""The demo engine for these tests: it answers at once, unless a test holds its answers in their middle.

    with held(server) as release:
        page.write("count to 3000")  # it begins, and waits
        ...
        release()  # what waits goes on to its end; what begins from now on waits in its turn

So a test that does something to an answer that runs has all the time it needs, and nobody waits for words.
"""

import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from itertools import count
from pathlib import Path

from engine.backends.demo.engine import DemoEngine
from engine.types import FinishReason, TokenChunk
from tests.kit.server import Server

APPLICATION = "tests.system.playground.held_asgi:application"
BEGINNING = 150  # tokens of an answer that come before it is held
LOOK_SECONDS = 0.02  # between two looks whether an answer may go on
_NAME = "answers-are-held"  # a file in DATA_DIR
_numbers = count(1)


class HeldEngine(DemoEngine):
    """Holds an answer behind its beginning while the file says the same as when the answer began."""

    async def _chunks(
        self, reply: Sequence[int], finish_reason: FinishReason, name: object, *, prompt_tokens: int | None
    ) -> AsyncGenerator[TokenChunk, None]:
        file = Path(os.environ["DATA_DIR"], _NAME)
        held, given = _content(file), 0
        async with aclosing(super()._chunks(reply, finish_reason, name, prompt_tokens=prompt_tokens)) as chunks:
            async for chunk in chunks:
                while held and given >= BEGINNING and _content(file) == held:
                    await self._pause(LOOK_SECONDS)
                given += len(chunk.token_ids)
                yield chunk


@contextmanager
def held(server: Server) -> Iterator[Callable[[], None]]:
    """Hold the answers of a server that runs APPLICATION; yield a function that lets those go on that have begun."""
    file = server.folder / _NAME

    def release() -> None:
        (server.folder / f"{_NAME}.new").write_text(str(next(_numbers)))
        (server.folder / f"{_NAME}.new").replace(file)

    release()
    try:
        yield release
    finally:
        file.unlink()


def _content(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""
