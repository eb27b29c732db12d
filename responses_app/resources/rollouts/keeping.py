"""`GenerationKeeper`: puts what responses add to roll-outs into the database, each generation at its place.

A roll-out's row is locked while something is added, so its generations have one order over all workers. The tokens that
its sequences end with (`PrefixTree`) stay in memory. Generations that other workers have added meanwhile are read
first, which the row's count tells: so a worker places a generation as if it had seen all others.

Its statements are written by hand, since each turn of each agent comes by here: the ORM would take twenty times the
time of the statements themselves.

What is added in a transaction is known here before it is committed. Where that fails, the heads are read anew.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from responses_app.protocol.rollouts.generations import Generation, RecordedResponse
from responses_app.protocol.rollouts.placing import PrefixTree
from responses_app.protocol.rollouts.weights import versions_after
from responses_app.resources.rollouts.model import RolloutGeneration
from responses_app.resources.rollouts.rows import (
    Counts,
    generation_row,
    insert,
    keep_counts,
    known_of,
    locked,
    read_generations,
    size_of,
)


@dataclass(slots=True, eq=False)
class _Entry:
    heads: PrefixTree
    is_sure: bool = True  # all of it is committed
    size: int = 0  # bytes of memory, when it was remembered


class GenerationKeeper:
    """Keeps generations; at most `max_bytes` of tokens stay in memory."""

    def __init__(self, *, max_bytes: int = 256 << 20) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # by the ids of roll-outs, the latest last
        self._size = 0  # of all entries
        self._lock = Lock()  # over both

    def keep(self, connection: BaseDatabaseWrapper, recorded: Sequence[RecordedResponse], *, now: float) -> None:
        """Keep what responses add, in the transaction that has begun; what is kept already is not kept twice.

        To be called last in a transaction: nothing else is locked behind the rows of roll-outs, so nobody waits for
        another in a circle.
        """
        by_rollout: dict[tuple[str, str], list[RecordedResponse]] = {}
        for each in recorded:
            if each.calls:
                by_rollout.setdefault((each.project, each.rollout.name), []).append(each)
        # In one order for all processes, for the same reason.
        with connection.cursor() as cursor:
            for name in sorted(by_rollout):
                self._keep(cursor, by_rollout[name], now)

    def forget(self, rollout_id: str) -> None:
        """Let go of the tokens of a roll-out."""
        with self._lock:
            self._drop(rollout_id)

    def _keep(self, cursor: CursorWrapper, recorded: Sequence[RecordedResponse], now: float) -> None:
        """Keep what responses add to one roll-out: hundreds may end at once, and its tokens are looked up once."""
        row = locked(cursor, recorded[0].project, recorded[0].rollout.name)
        if row is None:
            return
        added = {each.response_id: each for each in recorded if each.rollout.id in ("", row.id)}
        if row.generations and added:
            for response_id in known_of(cursor, row.id, list(added)):
                added.pop(response_id, None)
        if not added:
            return
        entry = self._entry(cursor.db, row)
        entry.is_sure = False
        transaction.on_commit(lambda: self._commit(row.id, entry), using=cursor.db.alias)
        insert(cursor, [each for response in added.values() for each in self._placed(entry.heads, row, response)])
        row.versions = versions_after(row.versions, (each.call for more in added.values() for each in more.calls))
        keep_counts(cursor, row, model=recorded[-1].model, now=now)

    def _placed(self, heads: PrefixTree, row: Counts, recorded: RecordedResponse) -> list[RolloutGeneration]:
        """Return what a response adds as rows, and count it."""
        rows = []
        for each in recorded.calls:
            placement, prompt = heads.place(each), each.prompt
            generation = Generation(
                number=row.generations,
                call=each.call,
                tail=prompt[placement.shared :],
                parent=placement.parent,
                shared=placement.shared,
                cut=placement.cut,
                near=placement.near,
            )
            heads.add(generation)
            rows.append(generation_row(row.id, generation))
            row.generations += 1
            row.prompt_tokens += len(generation.tail)
            row.sampled_tokens += len(each.call.sampled)
            row.bytes += size_of(rows[-1])
        return rows

    def _entry(self, connection: BaseDatabaseWrapper, row: Counts) -> _Entry:
        """Return the heads of a roll-out whose row is locked, with all that is kept of it."""
        with self._lock:
            entry = self._entries.get(row.id)
        if entry is None or not entry.is_sure:
            self.forget(row.id)
            return _Entry(PrefixTree(read_generations(connection, row.id, range(row.generations))))
        if len(entry.heads.numbers) < row.generations:  # others have added some
            missing = [number for number in range(row.generations) if number not in entry.heads.numbers]
            for generation in read_generations(connection, row.id, missing):
                entry.heads.add(generation)
        return entry

    def _commit(self, rollout_id: str, entry: _Entry) -> None:
        """Remember heads that are kept now, and forget those of the roll-outs that were served the longest ago."""
        entry.is_sure = True
        with self._lock:
            self._drop(rollout_id)
            entry.size = entry.heads.size
            self._size += entry.size
            self._entries[rollout_id] = entry
            while self._size > self._max_bytes:
                self._drop(next(iter(self._entries)))

    def _drop(self, rollout_id: str) -> None:
        """Forget an entry, if there is one; under the lock."""
        gone = self._entries.pop(rollout_id, None)
        if gone is not None:
            self._size -= gone.size
