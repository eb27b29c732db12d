"""Exports of roll-outs, one roll-out at a time, from the oldest to the newest.

The rows of a roll-out are made on a thread, a piece at a time, while the client reads: what is held of an export is one
roll-out and one piece. A roll-out that is deleted meanwhile is left out, or ends with the last row that was made.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

from responses_app.extensions.training.exports import ExportQuery, RowWriter, too_many_exports, writer_of
from responses_app.extensions.training.training_rows import FORMATS
from responses_app.protocol.errors import ApiError
from responses_app.protocol.rollouts.generations import Generation
from responses_app.protocol.rollouts.requests import RolloutObject
from responses_app.protocol.rollouts.tree import FormatOf, tree_of, unknown
from responses_app.runs.rollouts import Rollouts
from responses_app.stores.rollouts import RolloutRecord

PAGE = 100  # roll-outs that are looked up at once
AT_ONCE = 4  # exports of one process: each holds a roll-out, which may be large
PIECE = 256 * 1024  # bytes that are sent at once, where one row is not longer

_slots = asyncio.Semaphore(AT_ONCE)


async def exported(
    rollouts: Rollouts, project: str, query: ExportQuery, format_of: FormatOf = unknown
) -> AsyncGenerator[bytes, None]:
    """Yield the file of an export, at first an empty piece. `format_of` is asked on threads.

    Raises `ApiError` for an unknown `after` and where too many run, `ParquetMissing`, and `StoreError`.
    """
    writer = writer_of(query)
    after = None if query.after is None else await rollouts.place(project, query.after)
    if _slots.locked():
        raise too_many_exports()
    async with _slots:
        yield b""
        async for record, head in _chosen(rollouts, project, query, after):
            async for piece in _of_one(rollouts, record, head, query, writer, format_of):
                yield piece
        yield writer.end()


async def _chosen(
    rollouts: Rollouts, project: str, query: ExportQuery, after: str | None
) -> AsyncIterator[tuple[RolloutRecord, RolloutObject]]:
    """Yield the roll-outs behind the one with the id `after` that are taken, as far as that shows without tokens.

    Each also as clients see it.

    It goes on by ids of the roll-outs' own: names may be given anew meanwhile, to roll-outs that come last.
    """
    while True:
        page = await rollouts.behind(project, after, limit=PAGE, group=query.selection.group)
        for record in page:
            head = rollouts.shown(record)
            if query.selection.takes(head):
                yield record, head
        if len(page) < PAGE:
            return
        after = page[-1].id


async def _of_one(
    rollouts: Rollouts,
    record: RolloutRecord,
    head: RolloutObject,
    query: ExportQuery,
    writer: RowWriter,
    format_of: FormatOf,
) -> AsyncIterator[bytes]:
    generations = await _generations(rollouts, record)
    if generations is not None:
        pieces = _pieces(head, generations, query, writer, format_of)
        # `b""` in place of `StopIteration`, which no task can raise.
        while piece := await asyncio.to_thread(next, pieces, b""):
            yield piece


async def _generations(rollouts: Rollouts, record: RolloutRecord) -> Sequence[Generation] | None:
    try:
        return await rollouts.generations(record)
    except ApiError:  # it is deleted
        return None


def _pieces(
    head: RolloutObject,
    generations: Sequence[Generation],
    query: ExportQuery,
    writer: RowWriter,
    format_of: FormatOf,
) -> Iterator[bytes]:
    tree = tree_of(head, generations, format_of=format_of)
    if not query.selection.takes_tree(tree):
        return
    piece = bytearray()
    for row in FORMATS[query.format](tree):
        piece += writer.add(row)
        if len(piece) >= PIECE:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)
