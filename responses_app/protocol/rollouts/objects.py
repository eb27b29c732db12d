"""Roll-outs as clients see them."""

from typing import Any, Literal

from typing_extensions import TypedDict

from engine.formats.base import Role
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.rollouts.generations import Api, Break

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
