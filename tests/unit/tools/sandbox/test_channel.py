"""`HostChannel`: what one side needs while it works is done for whoever asks, and logged about them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from socket import socketpair
from typing import Any

from responses_app.extensions.containers.sandbox.channel import HostChannel, HostQuestion
from responses_app.observing.logs import bind, bound

SILENCE = 60.0


async def work(what: str, arguments: Sequence[Any], asked: HostQuestion) -> Any:
    """Need something, and tell something, before the answer."""
    asked.tell({"of": what})
    return await asked.call({"of": what})


@asynccontextmanager
async def connected() -> AsyncIterator[HostChannel]:
    """Yield the asking end of a connection, which was opened for somebody else."""
    ours, theirs = socketpair()
    opener = copy_context()
    opener.run(bind, project="the opener's")
    ends = (
        HostChannel(await asyncio.open_unix_connection(sock=ours), silence=SILENCE),
        HostChannel(await asyncio.open_unix_connection(sock=theirs), work=work, silence=SILENCE),
    )
    tasks = [asyncio.create_task(end.live(), context=opener.copy()) for end in ends]
    try:
        yield ends[0]
    finally:
        for end in ends:
            end.close()
        await asyncio.gather(*tasks)


async def test_what_is_needed_is_done_for_who_asks_and_not_for_who_opened_the_connection() -> None:
    about: list[tuple[str, str]] = []

    async def asks(channel: HostChannel, project: str) -> object:
        bind(project=project)

        def note() -> None:
            about.append((project, bound()["project"]))

        async def needed(value: dict[str, Any]) -> dict[str, Any]:
            note()
            bind(project="what is bound here stays here")
            return {"for": project, **value}

        return await channel.ask("it", (), callback=needed, report=lambda _: note())

    async with connected() as channel:
        answers = await asyncio.gather(asks(channel, "one"), asks(channel, "two"))
    assert answers == [{"for": "one", "of": "it"}, {"for": "two", "of": "it"}]
    assert sorted(about) == [("one", "one"), ("one", "one"), ("two", "two"), ("two", "two")]
