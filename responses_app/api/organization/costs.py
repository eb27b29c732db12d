"""What tokens have cost, `/v1/organization/costs`, by day: usage times the prices that hold now.

A line item is one kind of token of one model, such as `gpt-oss-120b, input_tokens`. Tokens of a model without a price
have no cost that is known: they are a result of their own, without `amount`, and never counted as 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from responses_app.protocol.prices import FIELDS, MILLION, Price, no_prices
from responses_app.stores.usage import DAY, UsageSum
from responses_app.web.http import ApiRequest
from responses_app.web.organization import organization
from responses_app.web.usage_pages import Costs, UsagePage, page_of_buckets
from responses_app.web.usage_queries import (
    API_SOURCE,
    Bucket,
    Kind,
    UsageQuestion,
    Width,
    asked_for,
    buckets_of,
    stored_groups,
    told_of,
)
from responses_app.wiring.site import get_site

LINE_ITEM = "line_item"
_WHOSE = ("project_id", "user_id", "api_key_id", API_SOURCE)
COSTS = Kind(
    groups=("project_id", "user_id", LINE_ITEM, "api_key_id", API_SOURCE),
    filters={"project_ids": "projects", "api_key_ids": "keys"},
    own_filters=("line_items",),
    widths={"1d": Width(DAY, usual=7, most=180)},
)


@dataclass(slots=True)
class _Total:
    """What is one result: of some of `costs`' groups in one bucket, with or without a price."""

    of: UsageSum  # one of the sums that share the groups
    line_item: str | None
    tokens: int
    cost: Decimal | None  # None: no price is known


async def _costs(request: ApiRequest) -> UsagePage:
    settings = get_site().settings
    asked = asked_for(request.query, COSTS)
    if not settings.prices:
        raise no_prices()
    page = await buckets_of(get_site().usage, asked, [*stored_groups(asked.groups), "model"])

    def results(bucket: Bucket) -> Iterator[Costs]:
        for each in _totals(bucket.sums, asked, settings.prices):
            yield _result(each, asked, settings.prices_currency)

    return page_of_buckets(page, results)


def _totals(sums: Sequence[UsageSum], asked: UsageQuestion, prices: Mapping[str, Price]) -> Sequence[_Total]:
    """Return the results of a bucket, in the order of what they are grouped by."""
    totals: dict[tuple[object, ...], _Total] = {}
    by_item = LINE_ITEM in asked.groups
    wanted = asked.own_filters.get("line_items")
    for used in sums:
        price = prices.get(str(used.model))
        for item, tokens, cost in line_items(used, price):
            if wanted is not None and item not in wanted:
                continue
            told = told_of(used, asked, _WHOSE).values()
            own = item if by_item else None
            key = (*told, own, cost is None)
            total = totals.setdefault(key, _Total(used, own, 0, None if cost is None else Decimal()))
            total.tokens += tokens
            if cost is not None and total.cost is not None:
                total.cost += cost
    return list(totals.values())


def line_items(used: UsageSum, price: Price | None) -> Iterator[tuple[str, int, Decimal | None]]:
    """Yield name, tokens and cost of each kind of token that was used of a model; the cost is None without a price."""
    tokens = used.tokens
    counts = {"input": tokens.input - tokens.cached, "cached_input": tokens.cached, "output": tokens.output}
    for kind in FIELDS:
        if counts[kind]:
            cost = None if price is None else counts[kind] * getattr(price, kind) / MILLION
            yield f"{used.model}, {kind}_tokens", counts[kind], cost


def _result(total: _Total, asked: UsageQuestion, currency: str) -> Costs:
    return {
        "object": "organization.costs.result",
        "amount": None if total.cost is None else {"value": float(total.cost), "currency": currency},
        "quantity": total.tokens if total.line_item is not None else None,
        "quantity_unit": "tokens" if total.line_item is not None else None,
        "line_item": total.line_item,
        **told_of(total.of, asked, _WHOSE),  # type: ignore[typeddict-item]
    }


ENDPOINTS = (
    organization(
        *("GET", "/v1/organization/costs", _costs, "usage-costs", "Show what tokens have cost"), takes=COSTS.takes
    ),
)
