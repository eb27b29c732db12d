"""Lists as OpenAI pages them: `limit`, `order`, `after` and `include` in, `{"object": "list", …}` out.

A query is a mapping of names to all values each was given; the last one counts.

A cursor (`after`, `before`) is a place, not a row: a list goes on behind what was deleted meanwhile. Ids grow with
time, so the id itself says where that was. Where a list has another order, its store knows the place
(`kit.places`). A cursor is refused only where it is not an id of the listed kind, so it does not tell
which ids others have.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from typing_extensions import TypedDict

from responses_app.protocol import ids
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
    before: str | None = None  # the id of the item before which it ends; without `after` it has those next to that

    @property
    def backwards(self) -> bool:
        """Whether the part is counted from its end."""
        return self.before is not None and self.after is None


def parse_list_query(
    query: Query,
    *kinds: str,
    most: int = MAX_LIMIT,
    usual: int = DEFAULT_LIMIT,
    descending: bool = True,
    both_ends: bool = False,
) -> ListQuery:
    """Read `limit`, `order` and `after`. Raises `ApiError` that names the one that is wrong.

    `kinds` are the prefixes of the ids that are listed; without any, the store decides what is an id. `limit` may be
    up to `most`; `usual` and `descending` hold where nothing is given. A list of `both_ends` takes `before`, too; any
    other has to leave it alone, since `respsite-ignored` names it.
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
        after=parse_cursor(query, "after", *kinds),
        before=parse_cursor(query, "before", *kinds) if both_ends else None,
    )


def parse_cursor(query: Query, name: str, *kinds: str) -> str | None:
    """Return the cursor that a query has under this name. Raises `ApiError` for no id with such a prefix."""
    # An empty one is that of a client that has no cursor yet.
    cursor = _last(query, name) or None
    if cursor is not None and kinds and not any(ids.is_made(cursor, kind) for kind in kinds):
        raise unknown_cursor(cursor, name, *kinds)
    return cursor


def parse_include_query(query: Query) -> Sequence[str]:
    """Return the values of `include`; SDKs write it as `include[]`. Raises `ApiError` for those that OpenAI lacks."""
    include = [*query.get("include", ()), *query.get("include[]", ())]
    check_include(include)
    return include


def unknown_cursor(cursor: str, name: str = "after", *kinds: str) -> ApiError:
    """A cursor is no id of an item of the list (400)."""
    form = f", which is {' or '.join(map(repr, kinds))} and 32 hex digits" if kinds else ""
    return _invalid(name, cursor, f"It takes the id of an item of this list{form}.")


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

    Raises `ApiError` where there are no rows at all, since a cursor is no id of this list.
    """
    if rows is None:
        raise unknown_cursor(str(query.after or query.before), "after" if query.after else "before")
    page = rows[-query.limit :] if query.backwards else rows[: query.limit]
    return list_page([shown(row) for row in page], has_more=len(rows) > query.limit)


def page_behind(items: Sequence[Listed], query: ListQuery) -> Page[Listed]:
    """Return a part of a whole list, whose oldest item is the first. Raises `ApiError` for a cursor that is no id."""
    ordered: Sequence[Listed] = list(reversed(items)) if query.descending else list(items)
    if query.after is not None:
        ordered = _behind(ordered, query.after, descending=query.descending)
    return list_page(ordered[: query.limit], has_more=len(ordered) > query.limit)


def _behind(ordered: Sequence[Listed], cursor: str, *, descending: bool) -> Sequence[Listed]:
    place = next((place for place, item in enumerate(ordered) if item["id"] == cursor), None)
    if place is not None:
        return ordered[place + 1 :]
    if ids.milliseconds_of(cursor) is None:
        raise unknown_cursor(cursor)
    # It is gone: behind it is what was made later, or before it. The digits alone tell: prefixes may differ.
    return [item for item in ordered if (str(item["id"])[-32:] < cursor[-32:]) == descending]


def _last(query: Query, name: str) -> str | None:
    values = query.get(name)
    return values[-1] if values else None


def _invalid(name: str, value: object, hint: str) -> ApiError:
    return invalid_value(name, f"{str(value)[:80]!r}. {hint}")
