"""What was used and what it has cost, `/v1/organization/usage/…` and `/v1/organization/costs`, in buckets of time.

What a request used is kept about half a second after it has ended. Usage has no content, so who looks at it is not
recorded in the audit trail.

Costs are usage times the prices that hold now, by day. A line item is one kind of token of one model, such as
`gpt-oss-120b, input_tokens`. Tokens of a model without a price have no cost that is known: they are a result of their
own, without `amount`, and never counted as 0.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from responses_app.protocol.prices import FIELDS, MILLION, Price, no_prices
from responses_app.resources.usage.fields import (
    DAY,
    CompletionsUsage,
    Costs,
    DecisionsUsage,
    EmbeddingsUsage,
    UsagePage,
    UsageResult,
    UsageSum,
    generated,
)
from responses_app.resources.usage.queries import API_SOURCE, Kind, UsageQuestion, Width, page_of, question_of, whose
from responses_app.web.http import ApiRequest
from responses_app.web.organization import organization
from responses_app.wiring.site import get_site

_WHOSE = ("project_id", "user_id", "api_key_id", "model")
_GENERATED_BY = (*_WHOSE, "batch", API_SOURCE)
_FILTERS = {"project_ids": "projects", "user_ids": "users", "api_key_ids": "keys", "models": "models"}
_generating: Any = {"groups": _GENERATED_BY, "filters": _FILTERS, "by_batch": True, "lacks": ("service_tier",)}
COMPLETIONS = Kind(sources=("responses", "completions"), **_generating)
DECISIONS = Kind(sources=("decisions",), **_generating)
EMBEDDINGS = Kind(sources=("embeddings",), groups=_WHOSE, filters=_FILTERS)
LINE_ITEM = "line_item"
_COSTS_BY = ("project_id", "user_id", "api_key_id", API_SOURCE)
COSTS = Kind(
    groups=("project_id", "user_id", LINE_ITEM, "api_key_id", API_SOURCE),
    filters={"project_ids": "projects", "api_key_ids": "keys"},
    own_filters=("line_items",),
    widths={"1d": Width(DAY, usual=7, most=180)},
)


async def _completions(request: ApiRequest) -> UsagePage:
    def result(used: UsageSum, question: UsageQuestion) -> CompletionsUsage:
        of = whose(used, question, _GENERATED_BY)
        return {"object": "organization.usage.completions.result", **generated(used, of)}

    return await _page(request, COMPLETIONS, result)


async def _decisions(request: ApiRequest) -> UsagePage:
    def result(used: UsageSum, question: UsageQuestion) -> DecisionsUsage:
        of = whose(used, question, _GENERATED_BY)
        return {"object": "organization.usage.decisions.result", **generated(used, of)}

    return await _page(request, DECISIONS, result)


async def _embeddings(request: ApiRequest) -> UsagePage:
    def result(used: UsageSum, question: UsageQuestion) -> EmbeddingsUsage:
        return {
            "object": "organization.usage.embeddings.result",
            "num_model_requests": used.requests,
            "input_tokens": used.tokens.input,
            **whose(used, question, _WHOSE),  # type: ignore[typeddict-item]
        }

    return await _page(request, EMBEDDINGS, result)


async def _page(request: ApiRequest, kind: Kind, result: Callable[[UsageSum, UsageQuestion], UsageResult]) -> UsagePage:
    question = question_of(request.query, kind)
    return await page_of(get_site().usage, question, lambda sums: (result(used, question) for used in sums))


@dataclass(slots=True)
class _Total:
    """The tokens of one result of costs, and what they have cost."""

    used: UsageSum  # one of the sums that share the groups
    line_item: str | None  # None: not grouped by it
    tokens: int
    cost: Decimal | None  # None: no price is known


async def _costs(request: ApiRequest) -> UsagePage:
    settings = get_site().settings
    question = question_of(request.query, COSTS)
    if not settings.prices:
        raise no_prices()

    def results(sums: Sequence[UsageSum]) -> Iterator[Costs]:
        for total in _totals(sums, question, settings.prices):
            yield {
                "object": "organization.costs.result",
                "amount": None
                if total.cost is None
                else {"value": float(total.cost), "currency": settings.prices_currency},
                "quantity": None if total.line_item is None else total.tokens,
                "quantity_unit": None if total.line_item is None else "tokens",
                "line_item": total.line_item,
                **whose(total.used, question, _COSTS_BY),  # type: ignore[typeddict-item]
            }

    return await page_of(get_site().usage, question, results, "model")


def _totals(sums: Sequence[UsageSum], question: UsageQuestion, prices: Mapping[str, Price]) -> Iterable[_Total]:
    """Return the results of a bucket, in the order of what they are grouped by."""
    totals: dict[tuple[object, ...], _Total] = {}
    line_items = question.own_filters.get("line_items")
    for used in sums:
        price, tokens = prices.get(str(used.model)), used.tokens
        counts = {"input": tokens.input - tokens.cached, "cached_input": tokens.cached, "output": tokens.output}
        for kind in FIELDS:
            line_item: str | None = f"{used.model}, {kind}_tokens"
            if not counts[kind] or (line_items is not None and line_item not in line_items):
                continue
            if LINE_ITEM not in question.groups:
                line_item = None
            key = (*whose(used, question, _COSTS_BY).values(), line_item, price is None)
            total = totals.setdefault(key, _Total(used, line_item, 0, None if price is None else Decimal()))
            total.tokens += counts[kind]
            if price is not None and total.cost is not None:
                total.cost += counts[kind] * getattr(price, kind) / MILLION
    return totals.values()


_USAGE = "/v1/organization/usage"

ENDPOINTS = (
    organization(
        "GET",
        f"{_USAGE}/completions",
        _completions,
        "usage-completions",
        "Show what responses, chats and completions have used",
        takes=COMPLETIONS.takes,
    ),
    organization(
        "GET",
        f"{_USAGE}/decisions",
        _decisions,
        "usage-decisions",
        "Show what decisions have used",
        takes=DECISIONS.takes,
    ),
    organization(
        "GET",
        f"{_USAGE}/embeddings",
        _embeddings,
        "usage-embeddings",
        "Show what embeddings have used",
        takes=EMBEDDINGS.takes,
    ),
    organization(
        "GET",
        "/v1/organization/costs",
        _costs,
        "usage-costs",
        "Show what tokens have cost",
        takes=COSTS.takes,
    ),
)
