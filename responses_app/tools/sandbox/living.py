"""A container while it lives: what `Containers` knows of it, and how it is told of to others."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from responses_app.protocol.files.containers import MemoryLimit
from responses_app.protocol.setting import MIB
from responses_app.tools.egress.base import NamedSecret, NetworkRecord
from responses_app.tools.egress.policy import EgressPolicy
from responses_app.tools.sandbox.kept_calls import KeptCalls
from responses_app.tools.sandbox.records import UNKEPT, ContainerFile, ContainerRecord
from responses_app.tools.sandbox.session import SandboxSession
from responses_app.tools.sandbox.skills import SkillFolder

if TYPE_CHECKING:  # its modules are imported where something is reached
    from responses_app.tools.egress.proxies import ContainerProxy

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
    files: dict[str, ContainerFile] = field(default_factory=dict)  # by path
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
        """What is the same for containers that may reach the same; "" for nothing."""
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
        return ContainerRecord(
            id=self.id,
            project=self.project,
            name=self.name,
            created_at=self.created_at,
            idle=self.idle,
            memory=self.memory,
            last_active=self.last_active,
            network=_network_record(self.network) if self.network is not None else None,
        )

    def has_expired(self, now: float) -> bool:
        """Whether it is gone: at the end of its life, or once nothing was done in it for its idle time."""
        if now - self.created_at > LIFE_SECONDS:
            return True
        return not self.working and now - self.last_active > self.idle


def _network_record(policy: EgressPolicy) -> NetworkRecord:
    secrets = [NamedSecret(str(each.domain), each.name) for each in policy.secrets]
    return NetworkRecord([str(each) for each in policy.domains], secrets, policy.key)
