"""Containers while they live, as their host knows them, with their calls and their network.

`KeptCalls`: a call of a container is made once, whoever asks for it again. A worker that dies asks no more, and the one
that takes its response over asks for the same call. It gets the result of the first: the code did not run twice.
A call that nobody wants any more is stopped, and is not begun again either.

`KnownContainers`: which containers a host has, whose they are, and which responses use them. A chain of responses keeps
its container: `of_chain` finds it by the response that is continued.

`WaysOut`: the proxies by which containers reach hosts, and the refusal of a policy that no container may have here.
"""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from responses_app.extensions.containers.egress.base import NamedSecret, NetworkRecord
from responses_app.extensions.containers.egress.policy import EgressPolicy
from responses_app.extensions.containers.sandbox.launch import BaseSandbox
from responses_app.extensions.containers.sandbox.records import (
    UNKEPT,
    CellRun,
    ChainFound,
    ContainerFileRecord,
    ContainerNotFound,
    ContainerRecord,
    NetworkRefused,
    SandboxError,
)
from responses_app.extensions.containers.sandbox.session import SandboxSession
from responses_app.extensions.containers.sandbox.skills import SkillFolder
from responses_app.protocol.files.containers import MemoryLimit
from responses_app.protocol.setting import MIB

if TYPE_CHECKING:
    from responses_app.extensions.containers.egress.proxies import ContainerProxies, ContainerProxy

MOST = 4  # calls of a container that are kept, besides those that run
_STOPPED = "the code was stopped; what it has done by then is not known"


@dataclass(slots=True)
class _KeptCall:
    """A call that runs, or has run."""

    task: "asyncio.Task[CellRun]"
    askers: int = 0  # who wait for it now


def still_wanted() -> bool:
    """Say that whoever asks is still there: a cancellation means that it is not wanted any more."""
    return False


class KeptBytes:
    """The results of the calls of all containers: at most `most` bytes, of which images are nearly all.

    The largest is forgotten first: so whoever shows many images takes nobody else's place.
    """

    def __init__(self, most: int) -> None:
        self.used = 0  # bytes that are kept now
        self._most = most
        self._sizes: dict[asyncio.Task[CellRun], int] = {}
        self._forgets: dict[asyncio.Task[CellRun], Callable[[], object]] = {}

    def keep(self, call: "asyncio.Task[CellRun]", run: CellRun, forget: Callable[[], object]) -> None:
        """Count the result of a call; `forget` is called once there is no room for it."""
        images = sum(len(each.content) for each in run.execution.images)
        size = images + len(run.execution.output) + sum(len(each.path) for each in run.files)
        self._sizes[call], self._forgets[call] = size, forget
        self.used += size
        while self.used > self._most:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self._forgets[largest]()
            self.drop(largest)

    def drop(self, call: "asyncio.Task[CellRun]") -> None:
        """Count it no more."""
        self.used -= self._sizes.pop(call, 0)
        self._forgets.pop(call, None)


class KeptCalls:
    """The calls of one container, the oldest first; `kept` counts their results."""

    def __init__(self, kept: KeptBytes) -> None:
        self._kept = kept
        self._calls: OrderedDict[str, _KeptCall] = OrderedDict()

    async def once(
        self,
        key: str,
        begin: Callable[[], Coroutine[Any, Any, CellRun]],
        *,
        is_dropped: Callable[[], bool] = still_wanted,
    ) -> CellRun:
        """Return the result of a call; `begin` it where it is new. With no `key` each call is new.

        A cancellation stops it, unless others wait for it, too, or it only dropped who asked. Raises `SandboxError`.
        """
        if not key:
            return await begin()
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _KeptCall(asyncio.create_task(begin()))
            call.task.add_done_callback(partial(self._note_end, key))
            ended = [other for other, each in self._calls.items() if each.task.done()]
            for old in ended[:-MOST]:
                self._forget(old)
        call.askers += 1
        try:
            return await asyncio.shield(call.task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if call.task.done() and (current is None or not current.cancelling()):
                raise SandboxError(_STOPPED) from None
            if call.askers == 1 and not is_dropped():
                await _stop(call.task)
            raise
        finally:
            call.askers -= 1

    async def aclose(self) -> None:
        """Stop all that run."""
        for call in list(self._calls.values()):
            await _stop(call.task)
        for key in list(self._calls):
            self._forget(key)

    def _forget(self, key: str) -> None:
        self._kept.drop(self._calls.pop(key).task)

    def _note_end(self, key: str, task: "asyncio.Task[CellRun]") -> None:
        # Where nobody waits any more, nobody is told of an error.
        is_done = not task.cancelled() and task.exception() is None
        call = self._calls.get(key)
        if is_done and call is not None and call.task is task:
            self._kept.keep(task, task.result(), partial(self._calls.pop, key, None))


async def _stop(task: "asyncio.Task[CellRun]") -> None:
    task.cancel()
    while not task.done():
        # Cancelled again, it still waits: the container is not free before.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})


LIFE_SECONDS = 86_400.0  # of a container, whatever is done in it
# As OpenAI's API has them, the least first.
MEMORY: dict[MemoryLimit, int] = {"1g": 1024 * MIB, "4g": 4096 * MIB, "16g": 16384 * MIB, "64g": 65536 * MIB}


@dataclass(slots=True)
class LivingContainer:
    """One container. Times are Unix seconds."""

    id: str
    project: str
    name: str
    created_at: int
    idle: float  # seconds without use, after which it expires
    memory: MemoryLimit  # how much it may have, as OpenAI's API names it
    last_active: float  # when something was done in it last
    calls: KeptCalls  # those that run, and what came of the last ones
    files: dict[str, ContainerFileRecord] = field(default_factory=dict)  # by path
    chain: "OrderedDict[str, None]" = field(default_factory=OrderedDict)  # the responses that used it, oldest first
    working: int = 0  # calls that use its session now
    session: SandboxSession | None = None  # None while nothing runs: before the first use, and once it has ended
    # Held while a session is started or put away, so that calls at once start one.
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    has_place: bool = False  # among those that work at once
    lost: str | None = None  # it had a session, which ended by itself: why, or nothing where that is not known
    is_saved: bool = False  # its files lie on disk, and nothing of it is in memory
    was_saved: bool = False  # they did, and the model was not told yet that its variables are lost
    skills: SkillFolder = field(default_factory=SkillFolder)
    network: EgressPolicy | None = None  # what it may reach; None: nothing
    proxy: "ContainerProxy | None" = None  # of what may reach something, from its first start on

    @property
    def network_key(self) -> str:
        """A text that is the same for containers with the same network; "" for none."""
        return self.network.key if self.network is not None else ""

    def give_secrets(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Have these values of its secrets from now on: `{"domain", "name", "value"}`."""
        if self.network is not None:
            self.network = self.network.with_values(values)
        if self.proxy is not None:
            self.proxy.give_secrets(values)

    @property
    def is_unkept(self) -> bool:
        """Whether its project keeps nothing: it never lies on disk."""
        return self.name == UNKEPT

    @property
    def is_worth_saving(self) -> bool:
        """Whether it has something, or is known to clients."""
        return not self.is_unkept and (self.session is not None or self.name != "auto")

    def record(self) -> ContainerRecord:
        """Return it as others are told of it."""
        network = None
        if (policy := self.network) is not None:
            secrets = [NamedSecret(str(each.domain), each.name) for each in policy.secrets]
            network = NetworkRecord([str(each) for each in policy.domains], secrets, policy.key)
        return ContainerRecord(
            id=self.id,
            project=self.project,
            name=self.name,
            created_at=self.created_at,
            idle=self.idle,
            memory=self.memory,
            last_active=self.last_active,
            network=network,
        )

    def has_expired(self, now: float) -> bool:
        """Whether it is gone: at the end of its life, or once nothing was done in it for its idle time."""
        if now - self.created_at > LIFE_SECONDS:
            return True
        return not self.working and now - self.last_active > self.idle


MAX_KNOWN = 10_000  # containers, nearly all of which nothing was ever done in
MAX_CHAIN = 1000  # responses that are remembered of one container


class KnownContainers:
    """Containers by their ids, oldest first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._containers: dict[str, LivingContainer] = {}
        self._of_responses: dict[str, str] = {}  # ids of containers, by the ids of responses that use them

    def __len__(self) -> int:
        return len(self._containers)

    def __iter__(self) -> Iterator[LivingContainer]:
        # A copy: some of them may end while somebody looks at each.
        return iter(list(self._containers.values()))

    def __contains__(self, container: LivingContainer) -> bool:
        return container.id in self._containers

    @property
    def is_full(self) -> bool:
        """Those that nothing was done in cost little, but their number must end."""
        return len(self._containers) >= MAX_KNOWN

    def add(self, container: LivingContainer) -> None:
        """Know a container, and the responses of its chain."""
        self._containers[container.id] = container
        self._of_responses.update(dict.fromkeys(container.chain, container.id))

    def remove(self, container: LivingContainer) -> None:
        """Know a container no more: nobody finds it from now on."""
        self._containers.pop(container.id, None)
        for key in container.chain:
            self._forget_key(key, container.id)

    def find(self, project: str, id: str) -> LivingContainer:
        """Return a container. Raises `ContainerNotFound`."""
        container = self._containers.get(id)
        if container is None or container.project != project or container.has_expired(self._clock()):
            raise ContainerNotFound(id)
        return container

    def of_project(self, project: str) -> list[LivingContainer]:
        """Return the containers of a project, oldest first."""
        return [each for each in self if each.project == project]

    def of_chain(self, project: str, keys: Sequence[str], network: str) -> ChainFound | None:
        """Return the first container that one of these names: ids of containers, or responses of `join_chain`.

        One that may reach something else than `network` says (`LivingContainer.network_key`) is passed over.
        """
        for place, key in enumerate(keys):
            # The first that is still there: an earlier key may be of a container that has expired.
            with contextlib.suppress(ContainerNotFound):
                container = self.find(project, self._of_responses.get(key, key))
                if container.network_key == network:
                    return ChainFound(place, container.record())
        return None

    def join_chain(self, id: str, keys: Iterable[str]) -> None:
        """Remember that these responses use a container: the first of each chain stands for all of it."""
        container = self._containers.get(id)
        if container is None:
            return
        for key in keys:
            self._of_responses[key] = id
            container.chain[key] = None
            container.chain.move_to_end(key)
            while len(container.chain) > MAX_CHAIN:
                self._forget_key(container.chain.popitem(last=False)[0], id)

    def _forget_key(self, key: str, id: str) -> None:
        # The response may use another container by now.
        if self._of_responses.get(key) == id:
            del self._of_responses[key]


def least_missed(of: Iterable[LivingContainer]) -> LivingContainer:
    """Return the one that was idle for longest, of the project that has most; one that works is last."""
    every = list(of)
    of_project = Counter(each.project for each in every)
    # `max`: an idle one before one that works; then of the project with most; then the one used longest ago.
    return max(every, key=lambda each: (not each.working, of_project[each.project], -each.last_active))


class WaysOut:
    """The proxies of a host's containers; without `make` there are none."""

    def __init__(self, make: "Callable[[], ContainerProxies] | None") -> None:
        self._make = make
        self._making = asyncio.Lock()
        self._proxies: ContainerProxies | None = None  # made for the first container that may reach something

    async def check(self, policy: EgressPolicy, sandbox: BaseSandbox) -> "ContainerProxies":
        """Return the maker of proxies. Raises `NetworkRefused` where no container may have this policy."""
        if self._make is None:
            raise NetworkRefused("containers have no network here; leave 'network_policy' out")
        async with self._making:
            if self._proxies is None:
                self._proxies = await asyncio.to_thread(self._make)  # its modules take long to import
        if refusal := self._proxies.refusal(policy):
            raise NetworkRefused(refusal)
        if not sandbox.has_ways_out:
            raise NetworkRefused(
                f"the sandbox of this server is {sandbox.name}, whose containers have no network of their own, so none "
                "of them may reach anything; leave 'network_policy' out"
            )
        return self._proxies

    async def of(self, container: LivingContainer, sandbox: BaseSandbox) -> "ContainerProxy | None":
        """Return the proxy of a container; None where it may reach nothing. Raises `NetworkRefused`."""
        if container.network is None:
            return None
        # Again: one that was saved may be of a time with other settings.
        proxies = await self.check(container.network, sandbox)
        if container.proxy is None:
            container.proxy = await proxies.proxy(container.project, container.network)
        return container.proxy

    def close(self) -> None:
        """Close the connections that the proxies share."""
        if self._proxies is not None:
            self._proxies.close()
