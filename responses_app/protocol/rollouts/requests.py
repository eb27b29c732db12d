"""Roll-outs as clients create, reward and read them: headers, ids, bodies, objects, refusals, and their settings.

Coding agents say by headers of their own whose conversation a request is, and who began it:

                  its session               one of its agents       who began that one (else its session did)
    Claude Code   x-claude-code-session-id  x-claude-code-agent-id  x-claude-code-parent-agent-id
    Codex         session-id                thread-id               x-codex-parent-thread-id
    OpenCode      x-session-id              a session of its own    x-parent-session-id

Headers with an underscore in their name (`session_id`, of old versions of Codex) reach no server: they are dropped, as
they could be taken for those with a hyphen.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, StrictFloat, StrictInt
from typing_extensions import TypedDict

from engine.formats.base import Role
from engine.types import TokenSampling
from responses_app.protocol import ids
from responses_app.protocol.errors import ApiError, JsonObject, conflict, invalid_request, invalid_value, not_found
from responses_app.protocol.fields import ClientModel, check_metadata, validate
from responses_app.protocol.setting import KIB, MIB, RoomSettings, seconds, setting, whole

HEADER = "x-rollout-id"
METADATA = "rollout_id"  # the key of a request's metadata that names its roll-out
NAME = r"[A-Za-z0-9._:-]{1,128}"
RESERVED = "export"  # `/v1/rollouts/export`
STEPS = (".", "..")  # clients resolve these in a URL, and then ask for something else
GROUP = r"[A-Za-z0-9._:/ -]{1,128}"
_NAME, _GROUP = re.compile(NAME), re.compile(GROUP)
MAX_BRANCH = 128  # characters
MAX_REWARDS = 10_000  # of a roll-out; each named number of one counts
MAX_PARTS = 64  # of one reward
_Number = StrictFloat | StrictInt


@dataclass(frozen=True, slots=True)
class HarnessSession:
    """Whose conversation a request is, in the words of its harness; empty where it says nothing."""

    session: str = ""
    agent: str = ""  # the one of its agents that asks; empty for the first one
    parent: str = ""  # the agent, or the session, that began this one

    @property
    def name(self) -> str:
        """The name of this conversation among all others of the harness."""
        return self.agent or self.session


NO_HARNESS = HarnessSession()
_HARNESSES = (  # headers: the session's, the agent's, the parent's
    ("session-id", "thread-id", "x-codex-parent-thread-id"),
    ("x-claude-code-session-id", "x-claude-code-agent-id", "x-claude-code-parent-agent-id"),
    ("x-session-id", "", "x-parent-session-id"),
)
MAX_SESSION = 256  # characters of a header that count
# By which a request says where it belongs.
HEADERS = (HEADER, *(name for names in _HARNESSES for name in names if name))


def harness_session(headers: Mapping[str, str]) -> HarnessSession:
    """Return the session that the headers of a request name; the first harness that names one is believed."""
    for of_session, of_agent, of_parent in _HARNESSES:
        session, agent, parent = (
            headers.get(name, "").strip()[:MAX_SESSION] for name in (of_session, of_agent, of_parent)
        )
        if not (session or agent):
            continue
        if agent == session:
            agent = ""
        # The first agent has no parent but in OpenCode, where each agent has a session of its own.
        if of_agent and not agent:
            parent = ""
        elif agent and not parent:
            parent = session
        return HarnessSession(session, agent, "" if parent == (agent or session) else parent)
    return NO_HARNESS


MAIN = "main"  # the branch of who names none
# Why a generation does not continue the sequence that it is nearest to; "" where it does.
Break = Literal[
    "",
    "reasoning_settled",  # thoughts that the model had are not shown to it any more
    "compaction",  # a summary has taken the place of what came before, or is being made
    "instructions_changed",  # the system's or the developer's message differs
    "history_changed",  # what the client sends of the conversation differs from what was said
    "fork",  # an earlier prompt is answered once more
    "sub_agent",  # it begins another agent's or another session's conversation
    "end_token",  # the format writes the token that ended an answer otherwise, once something follows it
    "template",  # the server itself has rendered what was said as other tokens: such sequences could have been one
]
Api = Literal["responses", "chat", "messages", "completions"]


@dataclass(frozen=True, slots=True)
class RolloutRef:
    """The roll-out that a request is part of."""

    name: str  # as its client calls it; empty where its headers name none: then the metadata may
    branch: str = MAIN  # whose conversation of it the request is
    api: Api = "responses"  # by which it came
    id: str = ""  # its own, once it is known: one that is made anew with the name of this one is another
    harness: HarnessSession = NO_HARNESS  # of which its branch is made


NOWHERE = RolloutRef("")  # what is recorded for its client alone


@dataclass(frozen=True, kw_only=True)
class RolloutSettings(RoomSettings):
    """How many roll-outs are kept, for how long, and how large one may be."""

    rollout_ttl: float = setting(
        30 * 24 * 3600.0, seconds(), "seconds after its last request when a roll-out is deleted; 0 = never"
    )
    rollouts_max_entries: int = setting(
        100_000, whole(1), "roll-outs of one project; further ones are refused until some are deleted"
    )
    rollout_max_generations: int = setting(
        10_000, whole(1), "generations that a roll-out may have; requests of a larger one are refused"
    )
    rollout_max_bytes: int = setting(
        256 * MIB, whole(KIB), "bytes that a roll-out may take; requests of a larger one are refused"
    )
    rollout_memory_bytes: int = setting(
        256 * MIB, whole(), "memory of a process for the tokens of the roll-outs that it serves"
    )


class Sampling(ClientModel, TokenSampling):
    """What holds for a request of the roll-out that says nothing of it."""


class NewRollout(ClientModel):
    """The body of a create."""

    id: str | None = Field(default=None, pattern=f"^{NAME}$")  # None: the server makes one
    group: str | None = Field(default=None, pattern=f"^{GROUP}$")  # attempts at one task have the same
    metadata: dict[str, str] | None = Field(default=None, max_length=16)
    sampling: Sampling | None = None
    weights_wanted: str | None = Field(default=None, pattern=r"^[\x21-\x7e]{1,256}$")  # of each token; None for any
    # How many versions of weights its oldest tokens may be behind the model's; None for any number.
    max_staleness: int | None = Field(default=None, ge=0, le=2**31 - 1)


class NewReward(ClientModel):
    """The body of a reward."""

    reward: _Number | Annotated[dict[str, _Number], Field(min_length=1, max_length=MAX_PARTS)]
    # A response of the roll-out, or the completion or message that it was; None: all of it.
    turn: str | None = Field(default=None, min_length=1, max_length=256)


Reward = float | dict[str, float]


class RewardObject(TypedDict):
    """A reward."""

    reward: Reward
    turn: str | None  # the response that it is of; null for the whole roll-out
    at: int  # Unix seconds


class RolloutUsage(TypedDict):
    """How much a roll-out has."""

    generations: int
    prompt_tokens: int  # each once, however often it was sent
    sampled_tokens: int
    bytes: int  # that are kept of it


class RolloutObject(TypedDict):
    """A roll-out without its tree."""

    id: str
    object: Literal["rollout"]
    created_at: int
    ended_at: int | None
    status: Literal["open", "ended"]
    group: str | None
    metadata: dict[str, str]
    model: str | None
    sampling: JsonObject
    weights_wanted: str | None
    max_staleness: int | None
    versions: list[str]  # of the weights that have sampled its tokens, in the order in which they came
    staleness: int | None  # versions that its oldest tokens are behind the model's; null where that is not known
    stale: bool | None  # whether that is more than `max_staleness`, so that it takes no more requests; null without one
    rewards: list[RewardObject]
    usage: RolloutUsage


class WeightsObject(TypedDict):
    """Sampled tokens in a row, and the weights that they come from."""

    version: str | None
    tokens: int


class TimesObject(TypedDict):
    """When the steps of a generation came, in Unix milliseconds."""

    queued: int | None
    asked: int | None
    first_token: int | None
    ended: int | None


class NodeImage(TypedDict):
    """An image, by the place of its first token in the node."""

    at: int
    digest: str  # the SHA-256 of `respsite picture 1`, ` low` at `detail: low`, a byte 0, and the image as it was sent


class NodeObject(TypedDict):
    """A span of tokens that are all of a prompt, or all sampled."""

    id: str
    parent: str | None
    kind: Literal["prompt", "sampled"]
    role: Role
    token_ids: list[int]
    mask: Literal[0, 1]
    logprobs: list[float | None] | None
    top_logprobs: list[list[tuple[int, float | None]]] | None
    response_id: str
    generation: str
    branch: str
    agent: str | None
    finish_reason: str | None
    times: TimesObject | None
    weights: list[WeightsObject]
    images: list[NodeImage]
    routed_experts: Any


class GenerationObject(TypedDict):
    """A call of the engine, and its path of nodes from a root."""

    id: str
    response_id: str
    api: Api
    branch: str
    agent: str | None
    turn: int
    prompt_tokens: int
    sampled_tokens: int
    dropped_tokens: int
    nodes: list[str]
    finish_reason: str | None
    summary: bool
    sampling: JsonObject
    grammar: bool | None


class SequenceObject(TypedDict):
    """A path to train on."""

    id: str
    branch: str
    nodes: list[str]
    token_ids: list[int]
    mask: list[int]
    logprobs: list[float | None]
    weights: list[WeightsObject]
    parent_sequence: str | None
    shared_tokens: int
    reward: Reward | None


class BreakObject(TypedDict):
    """Where a generation did not continue a sequence."""

    generation: str
    after: str
    position: int
    reason: Break


class RolloutTreeObject(RolloutObject):
    """A roll-out with its tree."""

    nodes: list[NodeObject]
    generations: list[GenerationObject]
    sequences: list[SequenceObject] | None  # null where they are left out: each is the tokens of its nodes
    breaks: list[BreakObject]


def parse_rollout(data: Mapping[str, object]) -> NewRollout:
    """Read the body of a create. Raises `ApiError`."""
    rollout = validate(NewRollout, data)
    if rollout.id is not None:
        checked_name(rollout.id, "id")
    check_metadata(rollout.metadata)
    return rollout


def response_of(turn: str) -> str:
    """Return the id of the response that a client calls by the id of its answer: a chat completion, for example."""
    for prefix in (ids.CHAT_COMPLETION, ids.MESSAGE):
        if turn.startswith(prefix):
            return ids.RESPONSE + turn.removeprefix(prefix)
    # The choices of a completion are numbered; without a number the first one is meant.
    is_whole = turn.startswith(ids.COMPLETION) and "-" not in turn.removeprefix(ids.COMPLETION)
    return f"{turn}-0" if is_whole else turn


def parse_reward(data: Mapping[str, object]) -> NewReward:
    """Read the body of a reward. Raises `ApiError`, also for NaN and infinities, which JSON does not have."""
    given = validate(NewReward, data)
    if given.turn is not None:
        given = given.model_copy(update={"turn": response_of(given.turn)})
    values = given.reward if isinstance(given.reward, dict) else {"": given.reward}
    for name, value in values.items():
        param = f"reward.{name[:80]}" if name else "reward"
        if len(name) > MAX_BRANCH:
            raise invalid_value(param, f"names of values have at most {MAX_BRANCH} characters.")
        if abs(value) > 1e300 or not math.isfinite(value):
            raise invalid_value(param, "a reward is a finite number.")
    return given


def is_full_of_rewards(rewards: Sequence[RewardObject], more: RewardObject) -> bool:
    """Whether a roll-out may not have one more reward."""
    given = (each["reward"] for each in (*rewards, more))
    return sum(len(each) if isinstance(each, dict) else 1 for each in given) > MAX_REWARDS


def as_sampling(sampling: Sampling | None) -> JsonObject:
    """Return the options of sampling, as they are kept."""
    return {} if sampling is None else sampling.model_dump(exclude_none=True)


def with_defaults(sampling: Mapping[str, Any], request: Any) -> dict[str, Any]:
    """Return the options of sampling that a roll-out has and a request does not."""
    return {name: value for name, value in sampling.items() if getattr(request, name, value) is None}


def ref_of(headers: Mapping[str, str], api: Api) -> RolloutRef:
    """Return the roll-out that a request's headers name. Raises `ApiError` (400) for a wrong id."""
    names = [name.strip(" ") for name in headers[HEADER].split(",")] if HEADER in headers else []
    for name in names:
        checked_name(name, HEADER)
    if len(set(names)) > 1:
        one, other, *_ = dict.fromkeys(names)
        raise invalid_value(
            HEADER, f"this header, or the URL, names '{one}' and '{other}': a request is part of one roll-out."
        )
    harness = harness_session(headers)
    branch = MAIN if harness is NO_HARNESS else branch_of(harness.session, harness.agent)
    return RolloutRef(names[0] if names else "", branch, api, harness=harness)


def named(ref: RolloutRef | None, metadata: Mapping[str, str] | None) -> RolloutRef | None:
    """Return the roll-out that a request is part of, by its headers or its metadata; None for none.

    Raises `ApiError` for a wrong id, and where the two name different ones.
    """
    ref, param = ref or RolloutRef(""), f"metadata.{METADATA}"
    if metadata and METADATA in metadata:
        name = checked_name(metadata[METADATA], param)
        if ref.name not in ("", name):
            raise invalid_value(param, f"it is '{name}', and the request came for '{ref.name}' ({HEADER}, or the URL).")
        ref = replace(ref, name=name)
    return ref if ref.name else None


def branch_of(session: str, agent: str = "") -> str:
    """Return whose conversation of a roll-out a request is: an agent's of a harness's session, as far as it says it."""
    return "/".join(filter(None, (session, agent)))[:MAX_BRANCH] or MAIN


def checked_name(name: str, param: str) -> str:
    """Return the id of a roll-out. Raises `ApiError` (400) for a text that is none."""
    if name == RESERVED:
        raise invalid_value(param, f"'{RESERVED}' is the path of exports: take another id.")
    if name in STEPS:
        raise invalid_value(param, f"'{name}' is a step of a path in a URL: take another id.")
    if _NAME.fullmatch(name) is None:
        shown = f"{name[:80]!r}{'…' if len(name) > 80 else ''}"
        raise invalid_value(param, f"{shown} is no id of a roll-out: 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':' and '-'.")
    return name


def can_be_name(name: str) -> bool:
    """Whether a roll-out may have this id: no database is asked for any other."""
    return _NAME.fullmatch(name) is not None


def can_be_group(group: str) -> bool:
    """Whether roll-outs may have this group."""
    return _GROUP.fullmatch(group) is not None


def rollout_not_found(name: str) -> ApiError:
    """There is no such roll-out in this project (404)."""
    return not_found(f"No rollout found with id '{name[:128]}'.", param="rollout_id", code="rollout_not_found")


def rollout_exists(name: str) -> ApiError:
    """There is one with this id (409)."""
    return conflict(f"There is a rollout with the id '{name}' already.", param="id", code="rollout_exists")


def rollout_ended(name: str) -> ApiError:
    """It has ended: no request is part of it any more (409)."""
    return conflict(
        f"The rollout '{name}' has ended, and takes no more requests. Begin another one.",
        param="rollout_id",
        code="rollout_ended",
    )


def rollout_full(name: str) -> ApiError:
    """It is as large as it may be (409)."""
    return conflict(
        f"The rollout '{name}' is as large as it may be (ROLLOUT_MAX_GENERATIONS, ROLLOUT_MAX_BYTES). Begin another "
        "one.",
        param="rollout_id",
        code="rollout_full",
    )


def rollout_too_large(most: int, *, sequences: bool) -> ApiError:
    """Its tree is larger than one answer may be (400)."""
    shorter = "Leave its sequences out: ?sequences=false. Or export" if sequences else "Export"
    return invalid_request(
        f"The tree of this rollout has more than the {most} tokens and names of nodes that one answer may have. "
        f"{shorter} it: GET /v1/rollouts/export?format=trl, for example, has a row for each sequence.",
        param="sequences",
        code="rollout_too_large",
    )


def rollouts_full(limit: int) -> ApiError:
    """The project has as many as it may have (429)."""
    return ApiError(
        f"This project has {limit} rollouts, and may not have more (ROLLOUTS_MAX_ENTRIES). Delete some.",
        status=429,
        type="rate_limit_error",
        code="rate_limit_exceeded",
    )


def turn_not_found(turn: str) -> ApiError:
    """A reward is of a response of which nothing is recorded there (400)."""
    return invalid_value("turn", f"no generation of this rollout is of the response '{turn[:128]}'.")


def too_many_rewards(name: str) -> ApiError:
    """It has as many rewards as are kept (409)."""
    return conflict(f"The rollout '{name}' may have {MAX_REWARDS} rewards, and takes no more.", code="too_many_rewards")
