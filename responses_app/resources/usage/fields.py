"""Usage: the counts of a request, queries over all of them, and the answers of `/v1/organization/usage/…`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from typing_extensions import TypedDict

Source = Literal["responses", "completions", "decisions", "embeddings"]
SOURCES: Sequence[Source] = get_args(Source)

# What sums can be told apart by. A key is an API key. A user is one of the admin, who asked without a key.
Group = Literal["project", "key", "user", "model", "source", "batch"]
GROUPS: Sequence[Group] = get_args(Group)

BATCH = "batch"  # the transport of what is a line of a batch

MINUTE, HOUR, DAY = 60, 3600, 86_400  # seconds
MINUTES_STAY = 2 * DAY  # then they become hours
HOURS_STAY = 32 * DAY  # then they become days


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedTokens:
    """Tokens that were used."""

    input: int
    cached: int  # of the input
    output: int


TOKENS = tuple(field.name for field in fields(UsedTokens))  # the columns are called so, with `_tokens` behind
WHOSE = ("project", "key_id", "model", "source", "batch")  # columns, and fields of an entry; rows are added up by them


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageEntry:
    """The usage of one request."""

    id: str  # of what was made: it counts once
    at: int  # Unix seconds, when it ended
    project: str
    key_id: str  # "session:7" for the user 7 of the admin, "" for none
    model: str
    source: Source
    tokens: UsedTokens
    batch: bool = False  # it was a line of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """Whose usage, of which time, and how finely."""

    start: int  # Unix seconds
    end: int  # Unix seconds, exclusive
    width: int | None = None  # seconds of each bucket, counted from 1970 on in UTC; None for the whole time
    groups: Sequence[Group] = ()  # what sums are told apart by
    # Each of these leaves out all others; empty ones leave out nothing.
    projects: Sequence[str] = ()
    keys: Sequence[str] = ()
    users: Sequence[str] = ()
    models: Sequence[str] = ()
    sources: Sequence[Source] = ()
    batch: bool | None = None  # lines of batches alone, or none of them
    limit: int = 10_000  # sums at most


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSum:
    """The usage in a bucket of those who share all that was grouped by; each other field is None."""

    start: int  # of the bucket, Unix seconds; the query's without buckets
    requests: int
    tokens: UsedTokens
    project: str | None = None
    key: str | None = None  # "" for requests without an API key
    user: str | None = None  # "" for requests that no user of the admin made
    model: str | None = None
    source: str | None = None
    batch: bool | None = None


def entry_of(response: Mapping[str, Any], *, at: int, project: str, key_id: str, transport: str) -> UsageEntry:
    """Return the usage of a response, as it says itself."""
    usage: Mapping[str, Any] = response.get("usage") or {}
    details = usage.get("input_tokens_details") or {}
    return UsageEntry(
        id=response["id"],
        at=at,
        project=project,
        key_id=key_id,
        model=response["model"],
        source="responses",
        batch=transport == BATCH,
        tokens=UsedTokens(
            input=usage.get("input_tokens", 0),
            cached=details.get("cached_tokens", 0),
            output=usage.get("output_tokens", 0),
        ),
    )


# What `/v1/organization/usage/…` and `/costs` answer: a page of buckets. Their fields are those of OpenAI's SDK.
# Null is whatever results are not told apart by, or nobody's: usage without a key has no `api_key_id`.


class Generated(TypedDict):
    """What models that generate have used in the time of a bucket."""

    num_model_requests: int
    input_tokens: int
    input_cached_tokens: int
    input_uncached_tokens: int
    # Nobody asks an engine here to keep something in its cache, and nobody speaks to it: these are 0.
    input_cache_write_tokens: int
    input_cache_write_30m_tokens: int
    input_cache_write_12h_tokens: int
    input_audio_tokens: int
    input_cached_audio_tokens: int
    output_audio_tokens: int
    output_image_tokens: int
    # Texts and images of the input are counted together, so these are null.
    input_text_tokens: None
    input_image_tokens: None
    input_cached_text_tokens: None
    input_cached_image_tokens: None
    output_tokens: int
    output_text_tokens: int
    project_id: str | None
    user_id: str | None
    api_key_id: str | None
    model: str | None
    batch: bool | None
    service_tier: None
    api_source: Literal["unlabeled"] | None


class CompletionsUsage(Generated):
    """What responses, chats, messages and completions have used."""

    object: Literal["organization.usage.completions.result"]


class DecisionsUsage(Generated):
    """What decisions have used."""

    object: Literal["organization.usage.decisions.result"]


class EmbeddingsUsage(TypedDict):
    """What embeddings have used in the time of a bucket."""

    object: Literal["organization.usage.embeddings.result"]
    num_model_requests: int
    input_tokens: int
    project_id: str | None
    user_id: str | None
    api_key_id: str | None
    model: str | None


class CostsAmount(TypedDict):
    """An amount of money."""

    value: float
    currency: str


class Costs(TypedDict):
    """What tokens have cost in the time of a bucket. Those of models without a price are a result without `amount`."""

    object: Literal["organization.costs.result"]
    amount: CostsAmount | None
    quantity: int | None
    quantity_unit: Literal["tokens"] | None
    line_item: str | None
    project_id: str | None
    user_id: str | None
    api_key_id: str | None
    api_source: Literal["unlabeled"] | None


UsageResult = CompletionsUsage | DecisionsUsage | EmbeddingsUsage | Costs


class UsageBucket(TypedDict):
    """What was used in a time, in Unix seconds; its end is not part of it."""

    object: Literal["bucket"]
    start_time: int
    end_time: int
    results: list[UsageResult]


class UsagePage(TypedDict):
    """A number of buckets, also of those in which nothing was used."""

    object: Literal["page"]
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None


def generated(used: UsageSum, whose: Mapping[str, Any]) -> Generated:
    """Return the usage of models that generate; `whose` are the fields that say by whom."""
    tokens = used.tokens
    return {
        "num_model_requests": used.requests,
        "input_tokens": tokens.input,
        "input_cached_tokens": tokens.cached,
        "input_uncached_tokens": tokens.input - tokens.cached,
        "input_cache_write_tokens": 0,
        "input_cache_write_30m_tokens": 0,
        "input_cache_write_12h_tokens": 0,
        "input_audio_tokens": 0,
        "input_cached_audio_tokens": 0,
        "output_audio_tokens": 0,
        "output_image_tokens": 0,
        "input_text_tokens": None,
        "input_image_tokens": None,
        "input_cached_text_tokens": None,
        "input_cached_image_tokens": None,
        "output_tokens": tokens.output,
        "output_text_tokens": tokens.output,
        "service_tier": None,
        **whose,  # type: ignore[typeddict-item]
    }
