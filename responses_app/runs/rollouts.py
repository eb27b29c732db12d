"""`Rollouts`: what the API calls for roll-outs, and what a request goes through that is part of one."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from engine.types import Session
from responses_app.auth.scopes import Named, check_named
from responses_app.kit.retention import keeps_nothing
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.engine_state import EngineState
from responses_app.protocol.errors import ApiError
from responses_app.protocol.requests.pages import unknown_cursor
from responses_app.protocol.requests.requests import CreateRequest
from responses_app.protocol.rollouts.generations import Generation, RecordedResponse
from responses_app.protocol.rollouts.requests import (
    HEADER,
    METADATA,
    NewReward,
    NewRollout,
    RolloutObject,
    RolloutRef,
    as_sampling,
    named,
    rollout_ended,
    rollout_exists,
    rollout_full,
    rollout_not_found,
    rollouts_full,
    too_many_rewards,
    turn_not_found,
    with_defaults,
)
from responses_app.protocol.rollouts.weights import WeightsRule, WeightsWanted, oldest_of
from responses_app.resources.rollouts.fields import RolloutExists, RolloutRecord, RolloutsFull, TooManyRewards
from responses_app.runs.plan.failures import store_errors
from responses_app.runs.plan.plan import Origin, session_of_branch
from responses_app.runs.plan.served import ServedModel
from responses_app.runs.retention import RetentionWatch

if TYPE_CHECKING:
    from responses_app.resources.rollouts.store import RolloutStore

MAX_RUNNING = 10_000  # roll-outs whose branches are remembered
MAX_BRANCHES = 64  # of one; the sessions of more are forgotten by the engines themselves

Fields = TypeVar("Fields", bound=BaseModel)


class Rollouts:
    """The roll-outs of all projects. Every method raises `ApiError`, and `StoreError` where it says nothing else."""

    def __init__(
        self,
        store: "RolloutStore",
        *,
        served: Callable[[str], ServedModel | None],
        new_id: Callable[[str], str],
        now: Callable[[], float],
        retention: RetentionWatch | None = None,
        over: Callable[[Session], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._retention = retention or RetentionWatch.of_none()
        self._served = served  # the model with a name
        self._new_id = new_id
        self._now = now
        self._over = over  # has the engines let go of a session
        self._engine_state: Callable[[str], EngineState] = lambda _: EngineState()
        # Of the roll-outs that ran here, by their own ids, the least recent first: sessions that end with them.
        self._branches: OrderedDict[str, set[str]] = OrderedDict()

    def follow(self, engine_state: Callable[[str], EngineState]) -> None:
        """Go by what this worker knows of the engine of each model."""
        self._engine_state = engine_state

    async def entered(self, request: CreateRequest, origin: Origin) -> tuple[CreateRequest, Origin]:
        """Return a request as its roll-out has it, and its origin; both as they are where it is part of none.

        Raises `ApiError` for a roll-out that has ended, or is full.
        """
        ref = part_of(origin, request.metadata)
        if ref is None:
            return request, replace(origin, rollout=None)
        record = await self.enter(origin.project, ref)
        return with_sampling(request, record), as_part(origin, ref, record)

    async def enter(self, project: str, ref: RolloutRef) -> RolloutRecord:
        """Return the roll-out that a request is part of; the first request of one makes it. Raises `ApiError`."""
        with store_errors():
            if (await self._retention.current()).keeps_nothing(project):
                raise _unkept()
            record = await self._store.get(project, ref.name)
            if record is None:
                try:
                    record = await self._make(project, ref.name, NewRollout())
                except RolloutExists:  # another request was the first
                    record = await self.get(project, ref.name)
        if record.ended_at is not None:
            raise rollout_ended(ref.name)
        settings = self._store.settings
        if record.generations >= settings.rollout_max_generations or record.bytes >= settings.rollout_max_bytes:
            raise rollout_full(ref.name)
        self._note_branch(record, ref.branch)
        return record

    def _note_branch(self, record: RolloutRecord, branch: str) -> None:
        branches = self._branches.setdefault(record.id, set())
        if len(branches) < MAX_BRANCHES:
            branches.add(branch)
        self._branches.move_to_end(record.id)
        if len(self._branches) > MAX_RUNNING:
            self._branches.popitem(last=False)

    async def wanted(self, project: str, ref: RolloutRef | None) -> WeightsWanted | None:
        """Return what the roll-out of a response that goes on wants of the weights. Raises `StoreError`."""
        record = None if ref is None else await self._store.get(project, ref.name)
        return None if record is None else wanted_of(record)

    def check(self, wanted: WeightsWanted | None, model: ServedModel) -> None:
        """Refuse a request whose roll-out wants other weights than the engine has now. Raises `ApiError`."""
        if wanted is None:
            return
        weights, state = model.engine.weights, self._engine_state(model.name)
        updates = None
        if state.update is not None or state.is_busy(self._now()):
            updates = "" if state.update is None else state.update.version
        served = () if weights is None else weights.versions
        wanted.check(served, _present(model, state), state.versions, updates=updates)

    def rule(self, wanted: WeightsWanted | None, model: ServedModel) -> WeightsRule | None:
        """Return what holds the tokens of a request to what its roll-out wants."""
        return None if wanted is None else WeightsRule(wanted, lambda: self._engine_state(model.name).versions)

    def shown(self, record: RolloutRecord) -> RolloutObject:
        """Return a roll-out as clients see it."""
        if not record.versions:
            return record.as_json(staleness=0)
        model = self._served(record.model)
        if model is None:
            return record.as_json()
        state = self._engine_state(model.name)
        return record.as_json(staleness=oldest_of(record.versions, _present(model, state), state.versions).behind)

    async def keep(self, recorded: RecordedResponse) -> None:
        """Keep what a completion adds. Raises `StoreError`."""
        await self._store.keep(recorded)

    async def create(self, project: str, new: NewRollout) -> RolloutRecord:
        """Make a roll-out."""
        try:
            return await self._make(project, new.id, new)
        except RolloutExists:
            raise rollout_exists(str(new.id)) from None

    async def get(self, project: str, name: str) -> RolloutRecord:
        """Return a roll-out without its generations."""
        return self._or_not_found(await self._store.get(project, name), name)

    async def generations(self, record: RolloutRecord) -> Sequence[Generation]:
        """Return the generations that a roll-out had when it was read."""
        found = await self._store.generations(record)
        if found is None:
            raise rollout_not_found(record.name)
        return found

    async def listed(
        self, project: str, *, after: str | None, limit: int, descending: bool, group: str | None
    ) -> Sequence[RolloutRecord] | None:
        """Return roll-outs behind the one named `after`, there or gone; None for what is no such name."""
        own = None if after is None else await self._store.place(project, after)
        if after is not None and own is None:
            return None
        return await self._store.listed(project, after=own, limit=limit, descending=descending, group=group)

    async def place(self, project: str, after: str) -> str:
        """Return the id of its own of the roll-out named `after`, there or gone. Raises `ApiError` (400)."""
        own = await self._store.place(project, after)
        if own is None:
            raise unknown_cursor(after)
        return own

    async def behind(self, project: str, own: str | None, *, limit: int, group: str | None) -> Sequence[RolloutRecord]:
        """Return roll-outs behind the one with the id `own` of its own, which may be gone, the oldest first."""
        return await self._store.listed(project, after=own, limit=limit, descending=False, group=group)

    async def reward(self, project: str, name: str, given: NewReward) -> RolloutRecord:
        """Add a reward."""
        if given.turn is not None and not await self._store.has(project, name, given.turn):
            await self.get(project, name)
            raise turn_not_found(given.turn)
        reward = {"reward": given.reward, "turn": given.turn, "at": int(self._now())}
        try:
            record = await self._store.add_reward(project, name, reward)  # type: ignore[arg-type]
        except TooManyRewards:
            raise too_many_rewards(name) from None
        return self._or_not_found(record, name)

    async def end(self, project: str, name: str) -> RolloutRecord:
        """End a roll-out: what runs goes on and is recorded, and no request joins it."""
        record = self._or_not_found(await self._store.end(project, name, at=int(self._now())), name)
        for branch in self._branches.pop(record.id, ()):
            self._over(session_of_branch(project, name, branch))
        return record

    async def delete(self, project: str, name: str) -> None:
        """Forget a roll-out."""
        if not await self._store.delete(project, name):
            raise rollout_not_found(name)

    async def _make(self, project: str, name: str | None, new: NewRollout) -> RolloutRecord:
        own, now = self._new_id(ids.ROLLOUT), int(self._now())
        record = RolloutRecord(
            id=own,
            project=project,
            name=name or own,
            created_at=now,
            last_at=now,
            group=new.group,
            metadata=new.metadata or {},
            sampling=as_sampling(new.sampling),
            weights_wanted=new.weights_wanted,
            max_staleness=new.max_staleness,
        )
        try:
            await self._store.create(record)
        except RolloutsFull:
            raise rollouts_full(self._store.settings.rollouts_max_entries) from None
        return record

    @staticmethod
    def _or_not_found(record: RolloutRecord | None, name: str) -> RolloutRecord:
        if record is None:
            raise rollout_not_found(name)
        return record


def _unkept() -> ApiError:
    return keeps_nothing(
        "A roll-out keeps the tokens of all that runs in it",
        "Leave the roll-out's headers and metadata out, or use another project.",
    )


def part_of(origin: Origin, metadata: Mapping[str, str] | None) -> RolloutRef | None:
    """Return the roll-out that a request is recorded for; None for none.

    Raises `ApiError` for a wrong id, and where the key may not write into roll-outs.
    """
    ref = named(origin.rollout, metadata)
    if ref is not None:
        by_header = origin.rollout is not None and origin.rollout.name
        param = HEADER if by_header else f"metadata.{METADATA}"
        check_named(origin.scopes, [Named(Area.ROLLOUTS, param, writes=True)])
    return ref


def as_part(origin: Origin, ref: RolloutRef, record: RolloutRecord) -> Origin:
    """Return the origin of a request that is part of a roll-out.

    Attempts at one task begin with the same prompt: the first request of each goes where another one has been.
    """
    kin = "" if record.group is None else f"{origin.project} {record.group}"
    return replace(origin, rollout=replace(ref, id=record.id), weights=wanted_of(record), kin=kin)


def wanted_of(record: RolloutRecord) -> WeightsWanted | None:
    """Return what a roll-out wants of the weights."""
    if record.weights_wanted is None and record.max_staleness is None:
        return None
    return WeightsWanted(
        rollout=record.name,
        version=record.weights_wanted,
        max_staleness=record.max_staleness,
        sampled=record.versions,
    )


def _present(model: ServedModel, state: EngineState) -> str:
    """Return the version of a model: that which samples here; where replicas differ, the one that all agreed on."""
    weights = model.engine.weights
    return (weights.version if weights is not None else None) or state.version


def with_sampling(request: Fields, record: RolloutRecord) -> Fields:
    """Return a request with what its roll-out says of sampling, where it says nothing itself."""
    defaults = with_defaults(record.sampling, request)
    return request.model_copy(update=defaults) if defaults else request
