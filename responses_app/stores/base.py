"""The contracts of what keeps responses, chats and pictures, which `stores.nothing` keeps too, by keeping nothing.

`tests/contracts/` has their suites. What is past its time is not found.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from responses_app.kit.errors import StoreError
from responses_app.limits.suspects import Stage
from responses_app.protocol.chat.completion import ChatForm, ChatQuery, StoredChoice
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.ids import Leg, PublicId, TurnLeg
from responses_app.protocol.items.items import SampledMessage
from responses_app.protocol.pictures import StoredPicture
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.protocol.rollouts.generations import RecordedResponse
from responses_app.protocol.setting import RoomSettings, seconds, setting, whole
from responses_app.resources.conversations.fields import ConversationAppend
from responses_app.resources.webhooks.messages import WebhookMessage


@dataclass(frozen=True, slots=True)
class Claim:
    """By what right a process writes of a response: `worker` has accepted it, or taken it over from a dead one.

    Each claim of a response has a higher `epoch` than those before. Everything that is written of a response that runs
    names its claim, and changes nothing where that is not the present one, or the response has ended: a worker that was
    taken for dead, and was not, finds out by that.
    """

    worker: str = ""  # its id; "" for nobody
    epoch: int = 1  # 1 for the worker that accepted the response


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedResponse:
    """A response that was accepted and has not ended."""

    project: str
    response: ResponseObject  # the object as clients read it
    claim: Claim  # that of the process that runs it
    input_items: tuple[JsonObject, ...] = ()
    transport: str = ""  # how its client is connected, as `Origin` names it
    key_id: str = ""  # of the API key it counts for; "" without one
    request: JsonObject | None = None  # what one in the background was asked: with it another worker can run it
    again: bool = False  # it was accepted before, and taken over
    parent: str = ""  # the stored response that it continues
    log: bytes = b""  # what came to it so far: whoever takes it over goes on behind that
    public: PublicId | None = None  # what clients call it; None for its own id
    suspicion: Stage = Stage.INNOCENT  # of one that is taken over, and was running where workers died
    request_name: str = ""  # of the request that made it, by which that is known again; "" where it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A finished response as it is kept."""

    project: str
    response: ResponseObject  # the object that its terminal event carried
    link: ChainLink | None  # its part of the chain; None for one that cannot be continued
    input_items: tuple[JsonObject, ...] = ()
    sampled: tuple[SampledMessage, ...] = ()  # the output items with their tokens, so that a client may replay them
    transport: str = ""
    key_id: str = ""
    first_token_ms: int | None = None  # since its run began; None where the model said nothing
    duration_ms: int | None = None
    conversation: ConversationAppend | None = None  # what it adds to one
    accepted: bool = False  # it was kept then, so if it is gone now, it was deleted
    claim: Claim = Claim()  # that of the process that ran it
    log: bytes = b""  # all that came to it, for its stream; replaces what was appended while it ran
    chat: StoredChoice | None = None  # it is a choice of a stored chat completion
    recorded: RecordedResponse | None = None  # what it adds to its roll-out


@dataclass(frozen=True, slots=True)
class StoredLog:
    """A response as clients read it, and its inputs as `response.input_codec` wrote them; b"" where none are kept."""

    response: ResponseObject  # with the status that it has now
    data: bytes  # empty where no log is kept


@dataclass(frozen=True, slots=True)
class LogNews:
    """What came to a response behind a position of its log, and its status now."""

    status: str  # so that a follower sees an end that its log does not tell
    data: bytes  # empty where nothing came


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAppend:
    """What came to a response that runs: the bytes of its log from `position` on, all that are not kept for sure.

    Where an append was not answered, the next one begins at the same position, and replaces it if it was kept.
    """

    response_id: str
    claim: Claim
    position: int  # in bytes, from the log's beginning
    data: bytes  # from `position` to the log's end
    project: str = ""  # whose the response is; needed only where webhooks are told something
    messages: tuple[WebhookMessage, ...] = ()  # for webhooks, in the same transaction: what the log says by now


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """What was not appended to."""

    lost: frozenset[str] = frozenset()  # ids of responses that another worker has claimed
    gone: frozenset[str] = frozenset()  # ids of responses that are not there any more


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """What a server process says of itself every few seconds."""

    id: str  # of the process; a new one for each start
    started_at: float  # Unix seconds
    connections: int = 0  # WebSockets that are open
    in_flight: int = 0  # responses that run


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """What dead workers left."""

    # This worker's now. Those that have a `request` are to be run, behind their log. The others cannot be, and are to
    # end as failed behind it: readers have seen what it says.
    claimed: tuple[AcceptedResponse, ...] = ()
    failed: int = 0  # how many had to be given up: nothing is kept to go on from


@dataclass(frozen=True, kw_only=True)
class RetentionSettings(RoomSettings):
    """How many responses are kept, and for how long."""

    responses_store_ttl: float = setting(
        0.0, seconds(), "seconds after its creation when a stored response is deleted; 0 = never"
    )
    responses_store_max_entries: int = setting(
        0, whole(),
        "stored responses of one project; if there are more, the oldest finished ones are deleted; 0 = no limit",
    )  # fmt: skip
    responses_store_max_bytes: int = setting(
        0, whole(),
        "total size of the stored responses of one project; if it is larger, the oldest finished ones are "
        "deleted; 0 = no limit",
    )  # fmt: skip

    background_unstored_minutes: int = setting(
        10, whole(1),
        "minutes that a background response with `store: false` is kept after its end, so that it can be polled",
    )  # fmt: skip

    @property
    def keeps_all(self) -> bool:
        """Whether nothing bounds what is kept."""
        return not (self.responses_store_ttl or self.responses_store_max_entries or self.responses_store_max_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """What a purge removed, or would remove."""

    responses: int = 0
    parts: int = 0  # of chains; a purge that only looks does not count them
    bytes: int = 0  # of the responses, as limits count them
    more: bool = False  # it stopped at its bound, and there is more to remove
    ids: tuple[str, ...] = field(default=(), compare=False, repr=False)  # of the removed responses

    def __add__(self, step: "Purged") -> "Purged":
        """Return both together; there is more where there was."""
        return replace(
            self,
            responses=self.responses + step.responses,
            parts=self.parts + step.parts,
            bytes=self.bytes + step.bytes,
            ids=self.ids + step.ids,
        )


class ParentGone(StoreError):
    """What a response continues was deleted, or its time is over."""


class NameTaken(StoreError):
    """Clients call another response as they are to call this one: it is not kept."""


class ClaimLost(StoreError):
    """Another worker has taken the response over: nothing was written, and nothing is to be written any more."""


class BaseResponseStore(ABC):
    """Keeps responses. What a call returned from survives the process; everything is seen per project.

    A response that is past its time to live is not found, purged or not.
    """

    async def start(self) -> None:  # noqa: B027 - most stores have nothing to start
        """Get ready. Raises `StoreError`."""

    async def aclose(self) -> None:  # noqa: B027
        """Finish what was asked and let go of everything. Safe to call twice."""

    @abstractmethod
    async def accept(self, accepted: AcceptedResponse) -> None:
        """Keep a response that is about to run (or, `again`, one that was taken over and is about to run).

        A response that has ended stays as it is. Raises `StoreError`, and `ClaimLost`, also for one taken over that has
        ended or was deleted since; `ParentGone`, and nothing is kept, where its `parent` is not known (any more);
        `NameTaken`, and nothing is kept, where its `public` id is another response's.
        """

    @abstractmethod
    async def begin(self, project: str, response_id: str, claim: Claim) -> None:
        """Note that a queued response has begun to answer. Raises `StoreError`, and `ClaimLost`."""

    @abstractmethod
    async def append(self, appends: Collection[LogAppend]) -> Appended:
        """Append to the logs of responses that run, at most one a response, in one transaction. Raises `StoreError`."""

    @abstractmethod
    async def give_back(self, accepted: AcceptedResponse) -> None:
        """Leave a response that waits or runs to the worker that looks first. Raises `StoreError`, and `ClaimLost`."""

    @abstractmethod
    async def save(self, stored: StoredResponse) -> None:
        """Keep a finished response, and append it to its conversation, in one transaction.

        It is committed when this returns. Of one that was deleted since it was accepted nothing is kept, and one that
        has ended stays as it is. Raises `StoreError`, and `ClaimLost`.
        """

    @abstractmethod
    async def response(self, project: str, response_id: str) -> ResponseObject | None:
        """Return the object as clients read it, whatever its status."""

    @abstractmethod
    async def knows(self, project: str, response_id: str) -> bool:
        """Whether there is such a response, whatever its status. Raises `StoreError`."""

    @abstractmethod
    async def newest_leg(self, project: str, name: str) -> Leg | None:
        """Return the newest of the responses that clients call so; None where `name` is not a public id."""

    @abstractmethod
    async def legs(self, project: str, name: str) -> Sequence[TurnLeg]:
        """Return all responses that clients call so, the newest first."""

    @abstractmethod
    async def input_items(self, project: str, response_id: str) -> Sequence[JsonObject] | None:
        """Return what the response was asked, oldest first; None if it is unknown."""

    @abstractmethod
    async def log(self, project: str, response_id: str) -> StoredLog | None:
        """Return a response with what came to it so far; None if it is unknown."""

    @abstractmethod
    async def log_since(self, project: str, response_id: str, position: int) -> LogNews | None:
        """Return what came to a response behind a position of its log; None if it is unknown."""

    @abstractmethod
    async def delete(self, project: str, response_id: str) -> bool:
        """Forget a response, and what of its chain nothing else needs; return whether there was one."""

    @abstractmethod
    async def delete_legs(self, project: str, name: str) -> Sequence[str]:
        """Forget all responses that clients call so, as `delete` does, all or none; return their own ids."""

    @abstractmethod
    async def chain(self, project: str, response_id: str) -> ChainLink | None:
        """Return the chain that ends in this response, None if it is unknown or cannot be continued."""

    @abstractmethod
    async def sampled_items(self, project: str, item_ids: Collection[str]) -> Mapping[str, SampledMessage]:
        """Return what is known of these output items, by id; ids that are not known are left out."""

    @abstractmethod
    async def items(
        self, project: str, item_ids: Collection[str], *, conversations: bool = True
    ) -> Mapping[str, JsonObject]:
        """Return these output items of responses, by id, and those of `conversations`; unknown ids are left out."""

    @abstractmethod
    async def beat(self, worker: WorkerState) -> float:
        """Say that a worker lives; return when that was, in Unix seconds of the store's own clock. Raises `StoreError`.

        A worker that was seen in the future, by a clock that went wrong, counts as seen now.
        """

    @abstractmethod
    async def reclaim(self, worker_id: str, *, dead_before: float, known: Collection[str] = ()) -> Orphans:
        """Take over what workers left that have not been seen since `dead_before`, or not at all.

        That is a time of the store's clock, long enough before a beat of this worker's own. Background responses, and
        all that have a log, become `worker_id`'s, by a new claim; all others end as failed. What it took over before
        and does not have among the `known`, since the answer got lost, it is given again. The `known` are not claimed:
        what it leaves to others while this waits is for them. A worker is to `beat` before it accepts anything, else
        others take it for dead. Raises `StoreError`.
        """

    @abstractmethod
    async def suspect(self, project: str, response_id: str, claim: Claim, stage: Stage) -> None:
        """Note what is thought of a response that was taken over, before it runs. Raises `ClaimLost`."""

    @abstractmethod
    async def has_orphans(self, worker_id: str, *, dead_before: float) -> bool:
        """Whether `reclaim` would find anything of others; cheap, to be asked every second. Raises `StoreError`."""

    @abstractmethod
    async def lost(self, claims: Mapping[str, Claim]) -> Collection[str]:
        """Return those of these responses, by their ids, that others have claimed since. Raises `StoreError`."""

    @abstractmethod
    async def purge(self) -> Purged:
        """Remove what is past its time or beyond the limits: the oldest first, of those that have ended.

        A project's newest response always stays. One call removes a bounded number; `more` says to call again.
        Raises `StoreError`.
        """

    @abstractmethod
    async def check(self) -> str | None:
        """Return None if the store can be used, else one sentence that says what to do (a migration to apply)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCompletion:
    """A stored completion: the responses of its choices, in their order, and how they are worded."""

    responses: Sequence[ResponseObject]  # in the order of the choices
    form: ChatForm  # how its request was worded
    metadata: Mapping[str, str]  # as it was changed last


class BaseChatStore(ABC):
    """The store of chat completions, which are named by the responses of their first choices.

    They are written with the responses that their choices are (`StoredResponse.chat`), in the same transaction, and go
    with them. One whose choices are not all there is not known. Every method raises `StoreError`.
    """

    @abstractmethod
    async def get(self, project: str, first: str) -> KeptCompletion | None:
        """Return a completion."""

    @abstractmethod
    async def messages(self, project: str, first: str) -> Sequence[JsonObject] | None:
        """Return the messages that a completion was asked for, as they were sent."""

    @abstractmethod
    async def listed(self, project: str, query: ChatQuery, *, limit: int) -> Sequence[KeptCompletion]:
        """Return up to `limit` completions behind the one that `query.page.after` names, which may be gone."""

    @abstractmethod
    async def change(self, project: str, first: str, metadata: Mapping[str, str]) -> None:
        """Give a completion other metadata, if it is there."""

    @abstractmethod
    async def choices(self, project: str, first: str) -> Sequence[str]:
        """Return the responses of a completion's choices, as far as they are kept."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""


class BasePictureStore(ABC):
    """Keeps the pictures that models were shown; nobody reaches another project's. Every method raises `StoreError`.

    A picture lies there once for each project, found by its digest, which stands in the tokens of the messages that
    show it. It is kept for its *owners*: responses, by their ids, and what continues them. It goes with the last.
    """

    @abstractmethod
    async def keep(self, project: str, owner: str, pictures: Sequence[StoredPicture]) -> None:
        """Keep pictures for an owner, which may be accepted only later: within an hour, or they may go."""

    @abstractmethod
    async def use(self, project: str, owner: str, digests: Collection[str]) -> Collection[str]:
        """Keep those of these pictures that are there for one more owner, as `keep` does; return their digests."""

    @abstractmethod
    async def known(self, project: str, digests: Collection[str]) -> Collection[str]:
        """Return which of these pictures are there."""

    @abstractmethod
    async def read(self, project: str, digest: str) -> StoredPicture | None:
        """Return a picture."""

    @abstractmethod
    async def purge(self) -> int:
        """Remove what was kept for owners that were never accepted; return how many uses that were."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
