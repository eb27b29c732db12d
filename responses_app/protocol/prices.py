"""PRICES: what tokens of a model cost, and what some tokens have cost. All sums are decimals, never floats.

    {"gpt-oss-120b": {"input": 0.15, "cached_input": 0.05, "output": 0.6}, "bge-m3": {"input": 0.02}}

Each is the price of a million tokens, in PRICES_CURRENCY. Cached input without a price of its own costs what input
costs; output without a price costs nothing, as that of an embedding model. A model that is not named has no price,
which is not 0: its cost is not known.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from responses_app.protocol.errors import ApiError, invalid_request
from responses_app.protocol.setting import RoomSettings, setting

MILLION = Decimal(1_000_000)
CENTS = 100  # of one of a currency
MOST = Decimal(1_000_000)  # that a million tokens may cost: whoever writes more has taken another unit
PLACES = Decimal("0.000001")  # of a price: a millionth
FIELDS = ("input", "cached_input", "output")
SHORT = '{"gpt-oss-120b": {"input": 0.15, "output": 0.6}}'
EXAMPLE = '{"gpt-oss-120b": {"input": 0.15, "cached_input": 0.05, "output": 0.6}}'


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens of a model cost."""

    input: Decimal
    cached_input: Decimal
    output: Decimal

    def cost(self, *, input: int, cached: int, output: int) -> Decimal:
        """Return the cost of tokens; `cached` are those of the input that were cached."""
        return sum(self.items(input=input, cached=cached, output=output).values(), Decimal(0))

    def items(self, *, input: int, cached: int, output: int) -> Mapping[str, Decimal]:
        """Return the cost of tokens by `FIELDS`."""
        return {
            "input": (input - cached) * self.input / MILLION,
            "cached_input": cached * self.cached_input / MILLION,
            "output": output * self.output / MILLION,
        }


def prices(value: str) -> dict[str, Price]:
    """Prices of models."""
    try:
        # Decimals from the text on: 0.1 is a tenth. NaN and infinities, which JSON does not have, come out as text.
        parsed = json.loads(
            value, parse_float=Decimal, parse_int=Decimal, parse_constant=str, object_pairs_hook=_without_repeats
        )
    except _Repeated as repeated:
        raise ValueError(str(repeated)) from None
    except (ValueError, ArithmeticError, RecursionError):  # also exponents and nestings that are out of bounds
        raise _wanted("it is not JSON") from None
    if not isinstance(parsed, dict):
        raise _wanted("it is not an object")
    return {model: _price(model, fields) for model, fields in parsed.items()}


def currency(value: str) -> str:
    """A currency's code."""
    if not re.fullmatch("[a-zA-Z]{3}", value.strip()):
        raise ValueError("the three letters of a currency, like usd or eur")
    return value.strip().lower()


@dataclass(frozen=True, kw_only=True)
class PriceSettings(RoomSettings):
    """What tokens cost."""

    prices: dict[str, Price] = setting(  # noqa: RUF009 - it gives a dictionary a factory
        {}, prices,
        "what a million tokens of each model cost, for the costs that the admin shows: "
        f"`{EXAMPLE}`; a model that is not named has no price",
        default_text="unset",
    )  # fmt: skip
    prices_currency: str = setting("usd", currency, "currency of PRICES, as its three letters")


def amount_text(amount: Decimal, currency: str) -> str:
    """Write an amount, in whole cents; with more places where it is less than one and has parts of a cent."""
    places = 2 if amount >= 1 or amount == round(amount, 2) else 6
    return f"{amount:,.{places}f} {currency.upper()}"


def no_prices() -> ApiError:
    """Without any price, no cost is known (400)."""
    return invalid_request(
        "This server knows no prices, so nothing is known of costs. Its operator can set them: PRICES.",
        code="no_prices",
    )


class _Repeated(ValueError):
    """A name stands twice in an object; the text is the end of a sentence."""


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Repeated(f"each name once, but {twice[:80]!r} stands twice")
    return read


def _price(model: str, fields: object) -> Price:
    if not isinstance(fields, dict):
        raise _wanted(f"the value of {model[:80]!r} is not an object")
    for name in fields:
        if name not in FIELDS:
            raise _wanted(f"{model[:80]!r} has the unknown field {name[:80]!r}")
    if "input" not in fields:
        raise _wanted(f"{model[:80]!r} lacks 'input'")
    own = dict(_amounts(model, fields))
    return Price(own["input"], own.get("cached_input", own["input"]), own.get("output", Decimal(0)))


def _amounts(model: str, fields: Mapping[str, object]) -> Iterator[tuple[str, Decimal]]:
    for name, amount in fields.items():
        # NaN and infinities are text by now. The bounds come first: a huge number cannot be rounded.
        if not isinstance(amount, Decimal) or not 0 <= amount <= MOST or amount != amount.quantize(PLACES):
            raise _wanted(
                f"{name!r} of {model[:80]!r} is {str(amount)[:40]}, not a number from 0 to {MOST:,} with at most 6 "
                "decimal places"
            )
        yield name, amount


def _wanted(problem: str) -> ValueError:
    return ValueError(f"a JSON object like {SHORT}; {problem}")
