"""Attributes of files in vector stores, and the filters by which a search leaves files out.

{"type": "and", "filters": [{"type": "eq", "key": "team", "value": "red"}, {"type": "gte", "key": "year", …}]}
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr
from pydantic_core import PydanticKnownError

from responses_app.protocol.errors import ApiError, JsonObject, invalid_request
from responses_app.protocol.fields import ClientModel
from responses_app.protocol.metadata import MAX_KEY, MAX_PAIRS, MAX_VALUE
from responses_app.protocol.validation import json_name, validate

MAX_DEPTH = 5  # filters in filters
MAX_FILTERS = 100  # in one request
MAX_VALUES = 100  # that an `in` names

Value = str | int | float | bool


def _few(value: object) -> object:
    if isinstance(value, dict) and len(value) > MAX_PAIRS:
        raise PydanticKnownError(
            "too_long", {"field_type": "Object", "max_length": MAX_PAIRS, "actual_length": len(value)}
        )
    return value


_Key = Annotated[str, Field(max_length=MAX_KEY)]
_Text = Annotated[StrictStr, Field(max_length=MAX_VALUE)]
Attributes = Annotated[dict[_Key, _Text | StrictBool | StrictInt | StrictFloat], BeforeValidator(_few)]


class _Comparison(ClientModel):
    """One attribute, compared with a value, or with several."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: _Key
    value: (
        StrictBool
        | StrictInt
        | StrictFloat
        | _Text
        | Annotated[list[StrictBool | StrictInt | StrictFloat | _Text], Field(max_length=MAX_VALUES)]
    )


class Filter:
    """A filter that was validated. `matches` says which files stay."""

    def __init__(self, wanted: JsonObject, *, at: str = "filters") -> None:
        """Read it. Raises `ApiError` that names what is wrong."""
        self._left = MAX_FILTERS
        self.matches = self._read(wanted, at, MAX_DEPTH)

    def _read(self, wanted: object, at: str, depth: int) -> Callable[[Mapping[str, Value]], bool]:
        self._left -= 1
        if not isinstance(wanted, dict):
            raise _wrong(at, f"it should be an object, and is {json_name(wanted)}")
        if self._left < 0 or depth == 0:
            raise _wrong(at, f"there are at most {MAX_FILTERS} filters, in each other {MAX_DEPTH} deep")
        if wanted.get("type") not in ("and", "or"):
            return _comparison(validate(_Comparison, wanted, at=at), at)
        inner = wanted.get("filters")
        if not isinstance(inner, list) or not inner:
            raise _wrong(f"{at}.filters", "it should be an array of filters")
        parts = [self._read(each, f"{at}.filters[{index}]", depth - 1) for index, each in enumerate(inner)]
        every = all if wanted["type"] == "and" else any
        return lambda attributes: every(part(attributes) for part in parts)


def _comparison(wanted: _Comparison, at: str) -> Callable[[Mapping[str, Value]], bool]:
    key, value = wanted.key, wanted.value
    if (wanted.type in ("in", "nin")) != isinstance(value, list):
        raise _wrong(f"{at}.value", "an array belongs to 'in' and 'nin', and to them alone")
    if isinstance(value, list):
        among, is_wanted = value, wanted.type == "in"
        return lambda attributes: any(_same(attributes.get(key), each) for each in among) == is_wanted
    match wanted.type:
        case "eq":
            return lambda attributes: _same(attributes.get(key), value)
        case "ne":
            return lambda attributes: not _same(attributes.get(key), value)
    if isinstance(value, bool):
        raise _wrong(f"{at}.value", "a number or a string can be greater than others")
    order = _ORDERS[wanted.type]
    return lambda attributes: _are_alike(attributes.get(key), value) and order(attributes[key], value)


_ORDERS: Mapping[str, Callable[[Value, Value], bool]] = {
    "gt": lambda one, other: one > other,  # type: ignore[operator]  # they are alike
    "gte": lambda one, other: one >= other,  # type: ignore[operator]
    "lt": lambda one, other: one < other,  # type: ignore[operator]
    "lte": lambda one, other: one <= other,  # type: ignore[operator]
}


def _same(one: Value | None, other: Value) -> bool:
    """Whether two values are equal; `true` is no 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _are_alike(one: Value | None, other: Value) -> bool:
    if isinstance(one, bool):
        return False
    return isinstance(one, str) == isinstance(other, str) and one is not None


def _wrong(param: str, why: str) -> ApiError:
    return invalid_request(f"Invalid value for '{param}': {why}.", param=param, code="invalid_value")
