"""What `/v1/organization/usage/…` and `/costs` answer: a page of buckets. Their fields are those of OpenAI's SDK.

Null is whatever results are not told apart by, or nobody's: usage without a key has no `api_key_id`.
"""

from collections.abc import Callable, Iterable
from typing import Literal

from typing_extensions import TypedDict

from responses_app.web.usage_queries import Bucket, Buckets


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


def page_of_buckets(page: Buckets, results: Callable[[Bucket], Iterable[UsageResult]]) -> UsagePage:
    """Return a page, with these results of each bucket."""
    return {
        "object": "page",
        "data": [
            {"object": "bucket", "start_time": each.start, "end_time": each.end, "results": list(results(each))}
            for each in page.buckets
        ],
        "has_more": page.next_page is not None,
        "next_page": page.next_page,
    }
