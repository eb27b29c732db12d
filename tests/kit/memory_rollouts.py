"""`MemoryRollouts`: roll-outs of this process; it keeps the contract of `contracts/rollouts.py`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from responses_app.protocol.rollouts.generations import Generation, RecordedResponse
from responses_app.protocol.rollouts.placing import PrefixTree
from responses_app.protocol.rollouts.requests import RewardObject, RolloutSettings, is_full_of_rewards
from responses_app.protocol.rollouts.weights import versions_after
from responses_app.stores.rollouts import (
    UNLIMITED,
    BaseRolloutStore,
    PurgedRollouts,
    RolloutExists,
    RolloutRecord,
    RolloutsFull,
    TooManyRewards,
)


@dataclass(slots=True)
class _Kept:
    record: RolloutRecord
    generations: list[Generation] = field(default_factory=list)
    heads: PrefixTree = field(default_factory=PrefixTree)


class MemoryRollouts(BaseRolloutStore):
    """Keeps roll-outs. `now` is the clock, in Unix seconds."""

    def __init__(self, settings: RolloutSettings = UNLIMITED, now: Callable[[], float] = lambda: 0.0) -> None:
        self.settings = settings
        self._now = now
        self._kept: dict[tuple[str, str], _Kept] = {}

    async def create(self, record: RolloutRecord) -> None:
        known = self._kept.get((record.project, record.name))
        if known is not None:
            if known.record.id != record.id:
                raise RolloutExists(record.name)
            return
        if sum(project == record.project for project, _ in self._kept) >= self.settings.rollouts_max_entries:
            raise RolloutsFull(record.project)
        self._kept[record.project, record.name] = _Kept(record)

    async def get(self, project: str, name: str) -> RolloutRecord | None:
        kept = self._kept.get((project, name))
        return None if kept is None else kept.record

    async def place(self, project: str, name: str) -> str | None:
        kept = self._kept.get((project, name))
        return None if kept is None else kept.record.id

    async def listed(
        self, project: str, *, after: str | None, limit: int, descending: bool = True, group: str | None = None
    ) -> Sequence[RolloutRecord]:
        mine = [kept.record for (owner, _), kept in self._kept.items() if owner == project]
        mine.sort(key=lambda record: record.id, reverse=descending)
        if after is not None:
            mine = [record for record in mine if (record.id < after if descending else record.id > after)]
        return [record for record in mine if group is None or record.group == group][:limit]

    async def generations(self, record: RolloutRecord) -> Sequence[Generation] | None:
        kept = self._kept.get((record.project, record.name))
        return None if kept is None or kept.record.id != record.id else kept.generations[: record.generations]

    async def has(self, project: str, name: str, response_id: str) -> bool:
        kept = self._kept.get((project, name))
        return kept is not None and any(each.call.response_id == response_id for each in kept.generations)

    async def keep(self, recorded: RecordedResponse) -> None:
        kept = self._kept.get((recorded.project, recorded.rollout.name))
        if kept is None or recorded.rollout.id not in ("", kept.record.id):
            return
        if any(each.call.response_id == recorded.response_id for each in kept.generations):
            return
        for each in recorded.calls:
            parent, shared, cut, near = kept.heads.place(each)
            number, tail = len(kept.generations), each.prompt[shared:]
            placed = Generation(
                number=number, call=each.call, parent=parent, shared=shared, cut=cut, near=near, tail=tail
            )
            kept.heads.add(placed)
            kept.generations.append(placed)
            kept.record = replace(
                kept.record,
                model=recorded.model,
                generations=number + 1,
                prompt_tokens=kept.record.prompt_tokens + len(tail),
                sampled_tokens=kept.record.sampled_tokens + len(each.call.sampled),
                bytes=kept.record.bytes + 3 * len(tail) + 7 * len(each.call.sampled),
            )
        versions = versions_after(kept.record.versions, (each.call for each in recorded.calls))
        kept.record = replace(kept.record, last_at=int(self._now()), versions=versions)

    async def add_reward(self, project: str, name: str, reward: RewardObject) -> RolloutRecord | None:
        kept = self._kept.get((project, name))
        if kept is None:
            return None
        if is_full_of_rewards(kept.record.rewards, reward):
            raise TooManyRewards(name)
        kept.record = replace(kept.record, rewards=[*kept.record.rewards, reward], last_at=reward["at"])
        return kept.record

    async def end(self, project: str, name: str, *, at: int) -> RolloutRecord | None:
        kept = self._kept.get((project, name))
        if kept is None:
            return None
        kept.record = replace(kept.record, ended_at=kept.record.ended_at or at)
        return kept.record

    async def delete(self, project: str, name: str) -> bool:
        return self._kept.pop((project, name), None) is not None

    async def purge(self) -> PurgedRollouts:
        if not self.settings.rollout_ttl:
            return PurgedRollouts(0, more=False)
        before = self._now() - self.settings.rollout_ttl
        old = [key for key, kept in self._kept.items() if kept.record.last_at < before]
        for key in old:
            del self._kept[key]
        return PurgedRollouts(len(old), more=False)

    async def aclose(self) -> None:
        """Nothing is open."""
