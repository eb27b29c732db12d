"""What was used, `/v1/organization/usage/…`, in buckets of time.

What a request used is kept about half a second after it has ended. Usage has no content, so who looks at it is not
recorded in the audit trail.
"""

from collections.abc import Callable
from typing import Any

from responses_app.stores.usage import UsageSum
from responses_app.web.http import ApiRequest
from responses_app.web.organization import organization
from responses_app.web.usage_pages import (
    CompletionsUsage,
    DecisionsUsage,
    EmbeddingsUsage,
    Generated,
    UsagePage,
    UsageResult,
    page_of_buckets,
)
from responses_app.web.usage_queries import (
    API_SOURCE,
    Kind,
    UsageQuestion,
    asked_for,
    buckets_of,
    stored_groups,
    told_of,
)
from responses_app.wiring.site import get_site

_WHOSE = ("project_id", "user_id", "api_key_id", "model")
_GENERATED_BY = (*_WHOSE, "batch", API_SOURCE)
_FILTERS = {"project_ids": "projects", "user_ids": "users", "api_key_ids": "keys", "models": "models"}
_generating: Any = {"groups": _GENERATED_BY, "filters": _FILTERS, "by_batch": True, "lacks": ("service_tier",)}
COMPLETIONS = Kind(sources=("responses", "completions"), **_generating)
DECISIONS = Kind(sources=("decisions",), **_generating)
EMBEDDINGS = Kind(sources=("embeddings",), groups=_WHOSE, filters=_FILTERS)


async def _completions(request: ApiRequest) -> UsagePage:
    return await _answer(request, COMPLETIONS, _completions_result)


async def _decisions(request: ApiRequest) -> UsagePage:
    return await _answer(request, DECISIONS, _decisions_result)


async def _embeddings(request: ApiRequest) -> UsagePage:
    return await _answer(request, EMBEDDINGS, _embeddings_result)


async def _answer(
    request: ApiRequest, kind: Kind, result: Callable[[UsageSum, UsageQuestion], UsageResult]
) -> UsagePage:
    asked = asked_for(request.query, kind)
    page = await buckets_of(get_site().usage, asked, stored_groups(asked.groups))
    return page_of_buckets(page, lambda bucket: (result(used, asked) for used in bucket.sums))


def _completions_result(used: UsageSum, asked: UsageQuestion) -> CompletionsUsage:
    return {"object": "organization.usage.completions.result", **_generated(used, asked)}


def _decisions_result(used: UsageSum, asked: UsageQuestion) -> DecisionsUsage:
    return {"object": "organization.usage.decisions.result", **_generated(used, asked)}


def _embeddings_result(used: UsageSum, asked: UsageQuestion) -> EmbeddingsUsage:
    return {
        "object": "organization.usage.embeddings.result",
        "num_model_requests": used.requests,
        "input_tokens": used.tokens.input,
        **told_of(used, asked, _WHOSE),  # type: ignore[typeddict-item]
    }


def _generated(used: UsageSum, asked: UsageQuestion) -> Generated:
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
        **told_of(used, asked, _GENERATED_BY),  # type: ignore[typeddict-item]
    }


_USAGE = "/v1/organization/usage"

ENDPOINTS = (
    organization(
        *("GET", f"{_USAGE}/completions", _completions, "usage-completions"),
        "Show what responses, chats and completions have used",
        takes=COMPLETIONS.takes,
    ),
    organization(
        *("GET", f"{_USAGE}/decisions", _decisions, "usage-decisions", "Show what decisions have used"),
        takes=DECISIONS.takes,
    ),
    organization(
        *("GET", f"{_USAGE}/embeddings", _embeddings, "usage-embeddings", "Show what embeddings have used"),
        takes=EMBEDDINGS.takes,
    ),
)
