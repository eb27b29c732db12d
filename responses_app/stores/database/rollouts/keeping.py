"""`GenerationKeeper`: puts what responses add to roll-outs into the database, each generation at its place.

A roll-out's row is locked while something is added, so its generations have one order over all workers. The tokens that
its sequences end with (`Heads`) stay in memory. What other workers have added meanwhile is read first, which the row's
count tells: so a worker places a generation as if it had seen all others.

What is added in a transaction is known here before it is committed. Where that fails, the heads are read anew.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.models.rollouts import Rollout, RolloutGeneration
from responses_app.protocol.rollouts.generations import Generation, RecordedResponse
from responses_app.protocol.rollouts.placing import Heads
from responses_app.stores.database.rollouts.rows import (
    as_time,
    generation_row,
    generations_of,
    read_generations,
    rollouts_of,
    size_of,
)


@dataclass(slots=True, eq=False)
class _Entry:
    heads: Heads
    is_sure: bool = True  # all of it is committed


class GenerationKeeper:
    """Keeps generations; at most `max_bytes` of tokens stay in memory."""

    def __init__(self, *, max_bytes: int = 256 << 20) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # by the ids of roll-outs, the latest last
        self._lock = Lock()

    def keep(self, connection: BaseDatabaseWrapper, recorded: Sequence[RecordedResponse], *, now: float) -> None:
        """Keep what responses add, in the transaction that has begun; what is kept already is not kept twice."""
        # In one order for all processes, so that none waits for another in a circle.
        for each in sorted(recorded, key=lambda one: (one.project, one.rollout)):
            if each.calls:
                self._keep(connection, each, now)

    def forget(self, rollout_id: str) -> None:
        """Let go of the tokens of a roll-out."""
        with self._lock:
            self._entries.pop(rollout_id, None)

    def _keep(self, connection: BaseDatabaseWrapper, recorded: RecordedResponse, now: float) -> None:
        found = rollouts_of(connection).select_for_update().filter(project=recorded.project, name=recorded.rollout)
        row = found.first()
        if row is None or generations_of(connection, row.pk).filter(response_id=recorded.response_id).exists():
            return
        entry = self._entry(connection, row)
        entry.is_sure = False
        transaction.on_commit(lambda: self._commit(row.pk, entry), using=connection.alias)
        rows = self._placed(entry.heads, row, recorded)
        RolloutGeneration.objects.using(connection.alias).bulk_create(rows)
        row.model, row.last_at = recorded.model, as_time(now)
        row.save(
            using=connection.alias,
            update_fields=["model", "last_at", "generations", "prompt_tokens", "sampled_tokens", "bytes"],
        )

    def _placed(self, heads: Heads, row: Rollout, recorded: RecordedResponse) -> list[RolloutGeneration]:
        """Return what a response adds as rows, and count it."""
        rows = []
        for each in recorded.calls:
            placement = heads.place(each)
            generation = Generation(
                number=row.generations,
                call=each.call,
                tail=each.prompt[placement.shared :],
                parent=placement.parent,
                shared=placement.shared,
                cut=placement.cut,
                near=placement.near,
            )
            heads.add(generation)
            rows.append(generation_row(row.pk, generation))
            row.generations += 1
            row.prompt_tokens += len(generation.tail)
            row.sampled_tokens += len(each.call.sampled)
            row.bytes += size_of(rows[-1])
        return rows

    def _entry(self, connection: BaseDatabaseWrapper, row: Rollout) -> _Entry:
        """Return the heads of a roll-out whose row is locked, with all that is kept of it."""
        with self._lock:
            entry = self._entries.get(row.pk)
        if entry is None or not entry.is_sure:
            self.forget(row.pk)
            return _Entry(Heads(read_generations(connection, row.pk) if row.generations else ()))
        if len(entry.heads.numbers) < row.generations:  # others have added some
            missing = [number for number in range(row.generations) if number not in entry.heads.numbers]
            for generation in read_generations(connection, row.pk, missing):
                entry.heads.add(generation)
        return entry

    def _commit(self, rollout_id: str, entry: _Entry) -> None:
        """Remember heads that are kept now, and forget those of the roll-outs that were served the longest ago."""
        entry.is_sure = True
        with self._lock:
            self._entries[rollout_id] = entry
            self._entries.move_to_end(rollout_id)
            excess = sum(each.heads.size for each in self._entries.values()) - self._max_bytes
            while excess > 0:
                _, gone = self._entries.popitem(last=False)
                excess -= gone.heads.size
