"""Lists as OpenAI pages them: `limit`, `order`, `after` and `include` in, `{"object": "list", …}` out.

A query is a mapping of names to all values each was given; the last one counts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from typing_extensions import TypedDict

from responses_app.protocol.errors import ApiError, JsonObject, invalid_value
from responses_app.protocol.fields import whole_number
from responses_app.protocol.items.resources import ItemJson
from responses_app.protocol.requests.create_fields import check_include

MAX_LIMIT, DEFAULT_LIMIT = 100, 20  # as at OpenAI

Query = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """What part of a list is asked for."""

    limit: int = DEFAULT_LIMIT  # how many items, at most
    descending: bool = True  # the newest first
    after: str | None = None  # the id of the item behind which it begins; None: at the beginning


def parse_list_query(
    query: Query, *, most: int = MAX_LIMIT, usual: int = DEFAULT_LIMIT, descending: bool = True
) -> ListQuery:
    """Read `limit`, `order` and `after`. Raises `ApiError` that names the one that is wrong.

    `most` is what `limit` may be; `usual` and `descending` what is meant where nothing is given.
    """
    number, order = _last(query, "limit"), _last(query, "order")
    limit = usual if number is None else whole_number(number, 1, most)
    if limit is None:
        raise _invalid("limit", str(number), f"It takes a whole number from 1 to {most}.")
    if order not in (None, "asc", "desc"):
        raise _invalid("order", order, "Supported values are: 'asc' and 'desc'.")
    return ListQuery(
        limit=limit,
        descending=descending if order is None else order == "desc",
        after=_last(query, "after") or None,  # an empty one is that of a client that has no cursor yet
    )


def parse_include_query(query: Query) -> Sequence[str]:
    """Return what an `include` asks for; SDKs write it as `include[]`. Raises `ApiError` for what OpenAI lacks."""
    include = [*query.get("include", ()), *query.get("include[]", ())]
    check_include(include)
    return include


def unknown_cursor(after: str) -> ApiError:
    """`after` names nothing in this list (400)."""
    return _invalid("after", after, "No item of this list has this id.")


class Identified(TypedDict):
    """An object of a list."""

    id: str


Listed = TypeVar("Listed", bound=Identified | JsonObject)
Row = TypeVar("Row")  # as it is stored


class ItemList(TypedDict):
    """A part of a list of items. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[ItemJson]
    first_id: str
    last_id: str
    has_more: bool


class Page(TypedDict, Generic[Listed]):
    """A part of a list."""

    object: Literal["list"]
    data: list[Listed]
    first_id: str
    last_id: str
    has_more: bool


def list_page(items: Sequence[Listed], *, has_more: bool) -> Page[Listed]:
    """Return a part of a list. The ids of an empty one are empty: OpenAI's types have strings there, never null."""
    return {
        "object": "list",
        "data": list(items),
        "first_id": str(items[0]["id"]) if items else "",
        "last_id": str(items[-1]["id"]) if items else "",
        "has_more": has_more,
    }


def page_of(rows: Sequence[Row] | None, query: ListQuery, shown: Callable[[Row], Listed]) -> Page[Listed]:
    """Return a part of a list for which one row more than it asks for was looked up: that tells whether there is more.

    Raises `ApiError` where there are no rows at all, since nothing is what `after` names.
    """
    if rows is None:
        raise unknown_cursor(str(query.after))
    return list_page([shown(row) for row in rows[: query.limit]], has_more=len(rows) > query.limit)


def page_behind(items: Sequence[Listed], query: ListQuery) -> Page[Listed]:
    """Return the part of a whole list, the oldest first, that is asked for. Raises `ApiError` for another's cursor."""
    ordered = list(reversed(items)) if query.descending else list(items)
    start = 0
    if query.after is not None:
        places = [place for place, item in enumerate(ordered) if item["id"] == query.after]
        if not places:
            raise unknown_cursor(query.after)
        start = places[0] + 1
    page = ordered[start : start + query.limit]
    return list_page(page, has_more=start + len(page) < len(ordered))


def _last(query: Query, name: str) -> str | None:
    values = query.get(name)
    return values[-1] if values else None


def _invalid(name: str, value: object, hint: str) -> ApiError:
    return invalid_value(name, f"{str(value)[:80]!r}. {hint}")
