"""What an export is asked for."""

import math
from dataclasses import dataclass
from typing import Literal

from responses_app.protocol.errors import ApiError, invalid_value
from responses_app.protocol.fields import whole_number
from responses_app.protocol.requests.pages import Query
from responses_app.protocol.rollouts.exports.formats import FORMATS, Selection
from responses_app.protocol.rollouts.requests import checked_name

FileType = Literal["jsonl", "parquet"]
FILE_TYPES: tuple[FileType, ...] = ("jsonl", "parquet")
STATUSES = ("open", "ended")
EVERYTHING = Selection()
MAX_TIME = 1 << 40  # Unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportQuery:
    """An export."""

    format: str = "tree"
    file_type: FileType = "jsonl"
    after: str | None = None  # the roll-out behind which it begins
    selection: Selection = EVERYTHING


def parse_export(query: Query) -> ExportQuery:
    """Read the query of an export. Raises `ApiError` that names the parameter that is wrong."""
    after = _last(query, "after")
    return ExportQuery(
        format=_one_of(query, "format", tuple(FORMATS)) or "tree",
        file_type="parquet" if _one_of(query, "file_type", FILE_TYPES) == "parquet" else "jsonl",
        after=None if after is None else checked_name(after, "after"),
        selection=Selection(
            group=_last(query, "group"),
            status=_one_of(query, "status", STATUSES),
            version=_last(query, "version"),
            min_reward=_number(query, "min_reward"),
            max_reward=_number(query, "max_reward"),
            created_after=_time(query, "created_after"),
            created_before=_time(query, "created_before"),
        ),
    )


def too_many_exports() -> ApiError:
    """As many exports run as one process makes at once (429)."""
    return ApiError(
        "As many exports of roll-outs run as this server makes at once. Try again when one has ended.",
        status=429,
        type="rate_limit_error",
        code="rate_limit_exceeded",
    )


def _last(query: Query, name: str) -> str | None:
    return (query.get(name) or [""])[-1] or None


def _one_of(query: Query, name: str, known: tuple[str, ...]) -> str | None:
    given = _last(query, name)
    if given is not None and given not in known:
        raise invalid_value(name, f"{given[:80]!r} is none of: {', '.join(known)}.")
    return given


def _number(query: Query, name: str) -> float | None:
    given = _last(query, name)
    if given is None:
        return None
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise invalid_value(name, f"{given[:80]!r} is no finite number.")
    return number


def _time(query: Query, name: str) -> int | None:
    given = _last(query, name)
    number = None if given is None else whole_number(given, 0, MAX_TIME)
    if given is not None and number is None:
        raise invalid_value(name, f"{given[:80]!r} is no time in Unix seconds.")
    return number
