"""A store of responses in memory, which keeps the contract of the one in a database."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from responses_app.kit.retention import oldest
from responses_app.limits.suspects import Stage, after_death, after_stop
from responses_app.protocol.errors import SERVER_STOPPED, JsonObject
from responses_app.protocol.ids import Leg, TurnLeg
from responses_app.protocol.items.items import SampledMessage
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.resources import RUNNING, ResponseObject, Status, as_failed
from responses_app.stores.base import (
    AcceptedResponse,
    Appended,
    BaseResponseStore,
    Claim,
    ClaimLost,
    LogAppend,
    LogNews,
    NameTaken,
    Orphans,
    ParentGone,
    Purged,
    RetentionSettings,
    StoredLog,
    StoredResponse,
    WorkerState,
)


@dataclass(slots=True)
class _Kept:
    """A response; `of` is what was accepted or saved of it, `response` how it is now, `claim` whose it is or was."""

    of: AcceptedResponse | StoredResponse
    response: ResponseObject
    claim: Claim
    log: bytes = b""
    suspicion: Stage = Stage.INNOCENT

    @property
    def runs(self) -> bool:
        return self.response["status"] in RUNNING

    @property
    def sampled(self) -> tuple[SampledMessage, ...]:
        return self.of.sampled if isinstance(self.of, StoredResponse) else ()

    @property
    def link(self) -> ChainLink | None:
        return self.of.link if isinstance(self.of, StoredResponse) else None

    @property
    def awaited(self) -> Collection[str] | None:
        return None if self.link is None else self.link.awaited.keys()


_Key = tuple[str, str]  # a project and an id in it


class MemoryResponseStore(BaseResponseStore):
    """Keeps a response until it is deleted or past its time. `now` is the clock, in Unix seconds.

    Conversations are another store's, and left alone.
    """

    def __init__(
        self,
        *,
        settings: RetentionSettings = RetentionSettings(),  # noqa: B008 - it is frozen
        now: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._now = now
        self._responses: dict[_Key, _Kept] = {}
        self._owners: dict[_Key, _Key] = {}  # the responses of output items
        self._names: dict[_Key, dict[int, str]] = {}  # the responses of public ids, by their legs
        self._workers: dict[str, float] = {}  # when each was seen

    async def accept(self, accepted: AcceptedResponse) -> None:
        key = accepted.project, accepted.response["id"]
        before = self._held(key, accepted.claim)
        if accepted.parent and before is None and not await self.knows(accepted.project, accepted.parent):
            raise ParentGone(accepted.parent)
        if accepted.public is not None and before is None and not accepted.again:
            legs = self._names.setdefault((accepted.project, accepted.public.name), {})
            if legs.setdefault(accepted.public.leg, key[1]) != key[1]:
                raise NameTaken(f"{accepted.public} is another response's")
        if accepted.again and not (before and before.runs):
            raise ClaimLost(f"{key[1]} was deleted, or has ended")
        if before is None or before.runs:
            log = before.log if before else accepted.log
            suspicion = before.suspicion if before else Stage.INNOCENT
            self._responses[key] = _Kept(accepted, accepted.response, accepted.claim, log, suspicion)

    async def begin(self, project: str, response_id: str, claim: Claim) -> None:
        kept = self._held((project, response_id), claim)
        if kept and kept.claim == claim and kept.response["status"] == Status.QUEUED.value:
            kept.response = {**kept.response, "status": Status.IN_PROGRESS.value}

    async def append(self, appends: Collection[LogAppend]) -> Appended:
        by_id = {response_id: kept for (_, response_id), kept in self._responses.items()}
        lost, gone = set(), set()
        for append in appends:
            kept = by_id.get(append.response_id)
            if kept is None:
                gone.add(append.response_id)
            elif kept.claim != append.claim:
                lost.add(append.response_id)
            elif kept.runs and append.position + len(append.data) > len(kept.log):
                kept.log = kept.log[: append.position] + append.data
        return Appended(lost=frozenset(lost), gone=frozenset(gone))

    async def give_back(self, accepted: AcceptedResponse) -> None:
        kept = self._held((accepted.project, accepted.response["id"]), accepted.claim)
        if kept and kept.runs:
            kept.of, kept.response = accepted, accepted.response
            kept.claim = Claim("", accepted.claim.epoch)

    async def save(self, stored: StoredResponse) -> None:
        key = stored.project, stored.response["id"]
        before = self._held(key, stored.claim)
        if stored.accepted if before is None else not before.runs:
            return
        self._responses[key] = _Kept(stored, stored.response, stored.claim, stored.log)
        self._owners |= {(stored.project, sampled.id): key for sampled in stored.sampled}

    async def response(self, project: str, response_id: str) -> ResponseObject | None:
        kept = self._known(project, response_id)
        return kept.response.copy() if kept else None

    async def knows(self, project: str, response_id: str) -> bool:
        return self._known(project, response_id) is not None

    async def newest_leg(self, project: str, name: str) -> Leg | None:
        legs = self._names.get((project, name), {})
        known = [number for number, response_id in legs.items() if self._known(project, response_id)]
        return Leg(legs[max(known)], max(known)) if known else None

    async def legs(self, project: str, name: str) -> Sequence[TurnLeg]:
        newest_first = sorted(self._names.get((project, name), {}).items(), reverse=True)
        known = ((number, each, self._known(project, each)) for number, each in newest_first)
        return [TurnLeg(each, number, kept.response["status"], kept.awaited) for number, each, kept in known if kept]

    async def input_items(self, project: str, response_id: str) -> Sequence[JsonObject] | None:
        kept = self._known(project, response_id)
        return list(kept.of.input_items) if kept else None

    async def log(self, project: str, response_id: str) -> StoredLog | None:
        kept = self._known(project, response_id)
        if kept is None:
            return None
        return StoredLog(kept.response.copy(), kept.log)

    async def log_since(self, project: str, response_id: str, position: int) -> LogNews | None:
        kept = self._known(project, response_id)
        return LogNews(kept.response["status"], kept.log[position:]) if kept else None

    async def delete(self, project: str, response_id: str) -> bool:
        known = self._known(project, response_id) is not None
        if known:
            self._remove((project, response_id))
        return known

    async def delete_legs(self, project: str, name: str) -> Sequence[str]:
        gone = [leg.response_id for leg in await self.legs(project, name)]
        for response_id in gone:
            self._remove((project, response_id))
        return gone

    async def chain(self, project: str, response_id: str) -> ChainLink | None:
        kept = self._known(project, response_id)
        return kept.link if kept and kept.response.get("store") is not False else None

    async def sampled_items(self, project: str, item_ids: Collection[str]) -> Mapping[str, SampledMessage]:
        wanted = frozenset(item_ids)
        return {each.id: each for kept in self._having(project, wanted) for each in kept.sampled if each.id in wanted}

    async def items(
        self, project: str, item_ids: Collection[str], *, conversations: bool = True
    ) -> Mapping[str, JsonObject]:
        found: dict[str, JsonObject] = {}
        for kept in self._having(project, item_ids):
            found |= {str(item["id"]): item for item in kept.response["output"] if item.get("id") in item_ids}
        return found

    async def beat(self, worker: WorkerState) -> float:
        now = self._now()
        self._workers = {**{each: min(seen_at, now) for each, seen_at in self._workers.items()}, worker.id: now}
        return now

    async def reclaim(self, worker_id: str, *, dead_before: float, known: Collection[str] = ()) -> Orphans:
        alive = {worker_id, *(each for each, seen_at in self._workers.items() if seen_at > dead_before)}
        claimed, failed = [], 0
        left: dict[str, dict[str, Stage]] = {}
        for (_, response_id), kept in self._responses.items():
            if kept.claim.worker not in alive and (kept.response["status"] == "in_progress" or kept.suspicion):
                left.setdefault(kept.claim.worker, {})[response_id] = kept.suspicion
        stages: dict[str, Stage] = {}
        for worker, theirs in left.items():
            stages |= after_death(theirs) if worker else after_stop(theirs)
        for (_, response_id), kept in self._responses.items():
            if not isinstance(kept.of, AcceptedResponse) or not kept.runs or response_id in known:
                continue
            is_mine = kept.claim.worker == worker_id and kept.claim.epoch > 1
            can_run = kept.of.request is not None or bool(kept.log)
            if kept.claim.worker not in alive:
                kept.claim = Claim(worker_id, kept.claim.epoch + 1)
                kept.suspicion = stages.get(response_id, Stage.INNOCENT)
                if not can_run:
                    kept.response = as_failed(kept.response, SERVER_STOPPED)
                    failed += 1
                    continue
            elif not (is_mine and can_run):
                continue
            kept.of = replace(kept.of, response=kept.response, claim=kept.claim, again=True, log=kept.log)
            kept.of = replace(kept.of, suspicion=kept.suspicion)
            claimed.append(kept.of)
        return Orphans(claimed=tuple(claimed), failed=failed)

    async def suspect(self, project: str, response_id: str, claim: Claim, stage: Stage) -> None:
        if kept := self._held((project, response_id), claim):
            kept.suspicion = stage

    async def has_orphans(self, worker_id: str, *, dead_before: float) -> bool:
        alive = {worker_id, *(each for each, seen_at in self._workers.items() if seen_at > dead_before)}
        return any(kept.runs and kept.claim.worker not in alive for kept in self._responses.values())

    async def lost(self, claims: Mapping[str, Claim]) -> Collection[str]:
        return [
            response_id
            for (_, response_id), kept in self._responses.items()
            if response_id in claims and claims[response_id].epoch != kept.claim.epoch
        ]

    async def purge(self) -> Purged:
        return Purged()

    async def check(self) -> str | None:
        return None

    def _held(self, key: _Key, claim: Claim) -> _Kept | None:
        """Return a response that nobody else has claimed, None for one that is not there. Raises `ClaimLost`."""
        kept = self._responses.get(key)
        if kept is not None and kept.claim.epoch != claim.epoch:
            raise ClaimLost(f"{key[1]} is not {claim.worker}'s any more")
        return kept

    def _known(self, project: str, response_id: str) -> _Kept | None:
        kept = self._responses.get((project, response_id))
        limit = oldest(None, self._now(), ttl=self._settings.responses_store_ttl)
        return kept if kept and kept.response["created_at"] > limit else None

    def _having(self, project: str, item_ids: Collection[str]) -> Iterator[_Kept]:
        """Yield the responses that have some of these output items."""
        for key in {self._owners.get((project, item_id)) for item_id in item_ids}:
            if key and (kept := self._known(*key)):
                yield kept

    def _remove(self, key: _Key) -> None:
        for sampled in self._responses.pop(key).sampled:
            self._owners.pop((key[0], sampled.id), None)
        for name, legs in list(self._names.items()):
            remaining = {leg: response_id for leg, response_id in legs.items() if (name[0], response_id) != key}
            if remaining:
                self._names[name] = remaining
            else:
                del self._names[name]
