"""Prices: what is refused at start, and costs that are exact."""

from decimal import Decimal

import pytest

from responses_app.protocol.prices import Price, currency, prices

HUGE = "9" * 400


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "not JSON"),
        ("cheap", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not an object"),
        ("null", "not an object"),
        ('{"m": 1}', "the value of 'm' is not an object"),
        ('{"m": {}}', "'m' lacks 'input'"),
        ('{"m": {"output": 1}}', "'m' lacks 'input'"),
        ('{"m": {"input": 1, "per_call": 2}}', "'m' has the unknown field 'per_call'"),
        ('{"m": {"input": NaN}}', "'input' of 'm' is NaN"),
        ('{"m": {"input": Infinity}}', "is Infinity"),
        ('{"m": {"input": -Infinity}}', "is -Infinity"),
        ('{"m": {"input": -0.1}}', "is -0.1"),
        ('{"m": {"input": 1e400}}', "is 1E+400"),
        ('{"m": {"input": 1e99999999999999999999}}', "not JSON"),
        (f'{{"m": {{"input": {HUGE}}}}}', "is 9999"),
        ('{"m": {"input": 1000001}}', "is 1000001"),
        ('{"m": {"input": 0.0000001}}', "at most 6 decimal places"),
        ('{"m": {"input": 1e-400}}', "at most 6 decimal places"),
        ('{"m": {"input": "1"}}', "is 1, not a number"),
        ('{"m": {"input": true}}', "is True"),
        ('{"m": {"input": null}}', "is None"),
        ('{"m": {"input": [1]}}', "not a number"),
        ('{"m": {"input": 1}, "m": {"input": 2}}', "'m' stands twice"),
        ('{"m": {"input": 1, "input": 2}}', "'input' stands twice"),
    ],
)
def test_wrong_prices_are_refused_with_a_reason(given: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"a JSON object like|each name once") as refused:
        prices(given)
    text = str(refused.value)
    assert says in text
    assert len(text) < 400


def test_what_is_left_out() -> None:
    assert prices('{"m": {"input": 0.1}, "n": {"input": 2, "cached_input": 0, "output": 3.000001}}') == {
        "m": Price(Decimal("0.1"), Decimal("0.1"), Decimal(0)),
        "n": Price(Decimal(2), Decimal(0), Decimal("3.000001")),
    }
    assert prices("{}") == {}


def test_costs_are_exact() -> None:
    """As no float would have it: a tenth is a tenth, however often it is added."""
    price = prices('{"m": {"input": 0.1, "cached_input": 0.01, "output": 0.3}}')["m"]
    assert price.cost(input=3, cached=0, output=0) == Decimal("0.0000003")
    assert price.cost(input=10, cached=4, output=1) == Decimal("0.00000094")
    assert sum(price.cost(input=1, cached=0, output=0) for _ in range(1_000)) == Decimal("0.0001")
    assert price.items(input=2_000_000, cached=1_000_000, output=0) == {
        "input": Decimal("0.1"),
        "cached_input": Decimal("0.01"),
        "output": 0,
    }


@pytest.mark.parametrize("given", ["", "$", "dollars", "us", "u$d", "éur"])
def test_a_currency_is_three_letters(given: str) -> None:
    with pytest.raises(ValueError, match="three letters"):
        currency(given)
    assert currency(" USD ") == "usd"
