"""Questions about usage and costs, as OpenAI's SDK asks them: a time in buckets, groups, filters, and a page of these.

Buckets are whole minutes, hours or days in UTC, as usage is kept: a time within one means all of it. A page is a number
of buckets, also of those in which nothing was used. `next_page` says where the next one begins, and of which question
it is: another question refuses it.
"""

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, invalid_value
from responses_app.protocol.fields import missing, whole_number
from responses_app.resources.usage.fields import (
    DAY,
    HOUR,
    HOURS_STAY,
    MINUTE,
    MINUTES_STAY,
    Group,
    Source,
    UsagePage,
    UsageQuery,
    UsageResult,
    UsageSum,
)
from responses_app.web.endpoint import Parameter, text
from responses_app.web.organization import MAX_TIME, unix_seconds

if TYPE_CHECKING:
    from responses_app.resources.usage.store import UsageStore

Query = Mapping[str, Sequence[str]]  # all values of each name
MAX_SUMS = 20_000  # of a page; one that would have more ends earlier
API_SOURCE = "api_source"  # a group that all usage is alike in: there is no Agents API here
UNLABELED = "unlabeled"  # OpenAI's name for what is not of it
_SINGLE = ("start_time", "end_time", "bucket_width", "limit", "page")  # parameters that have one value
_DIGEST = 6  # bytes by which a page knows its question


@dataclass(frozen=True, slots=True)
class Width:
    """How wide buckets are, and how many of them a page has."""

    seconds: int
    usual: int  # buckets of a page
    most: int  # buckets of a page
    stays: int | None = None  # seconds for which usage is kept so finely; None: for ever


WIDTHS: Mapping[str, Width] = {
    "1m": Width(MINUTE, usual=60, most=1440, stays=MINUTES_STAY),
    "1h": Width(HOUR, usual=24, most=168, stays=HOURS_STAY),
    "1d": Width(DAY, usual=7, most=31),
}
GROUPS: Mapping[str, Group] = {
    "project_id": "project",
    "user_id": "user",
    "api_key_id": "key",
    "model": "model",
    "batch": "batch",
}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The questions that one path takes."""

    groups: Sequence[str]  # names of `group_by`
    filters: Mapping[str, str]  # names of parameters with several values, and of the fields of `UsageQuery`
    sources: Sequence[Source] = ()
    by_batch: bool = False  # whether it takes `batch`
    widths: Mapping[str, Width] = field(default_factory=lambda: WIDTHS)
    lacks: Sequence[str] = ()  # groups that OpenAI has, and that are not kept here
    own_filters: Sequence[str] = ()  # names of such parameters that who asks reads itself

    @property
    def takes(self) -> tuple[Parameter, ...]:
        """Its parameters, as the OpenAPI document shows them."""
        most = ", ".join(f"{width.usual} and {width.most} for '{name}'" for name, width in self.widths.items())
        texts: JsonObject = {"type": "array", "items": {"type": "string"}}
        number: JsonObject = {"type": "integer", "minimum": 0}
        batch = Parameter("batch", "Only lines of batches, or none of them.", {"type": "boolean"})
        return (
            Parameter("start_time", "The beginning, in Unix seconds.", number, required=True),
            Parameter("end_time", "The end, in Unix seconds, exclusive; now, where it is left out.", number),
            Parameter("bucket_width", "The width of a bucket.", text(enum=list(self.widths), default="1d")),
            Parameter(
                "group_by[]",
                "What results are told apart by.",
                {"type": "array", "items": {"type": "string", "enum": list(self.groups)}},
            ),
            *(Parameter(f"{name}[]", "Only of these.", texts) for name in (*self.filters, *self.own_filters)),
            *((batch,) if self.by_batch else ()),
            Parameter(
                "limit",
                f"The number of buckets: usually and at most {most}.",
                {"type": "integer", "minimum": 1},
            ),
            Parameter("page", "The `next_page` of the page before.", text()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuestion:
    """A question about usage, and which of its pages."""

    width: Width
    first: int  # when the first bucket of the page begins, in Unix seconds
    end: int  # when the last bucket of all pages ends
    limit: int  # buckets of the page, at most
    groups: Sequence[str]  # as the API names them
    filters: Mapping[str, Any]  # fields of `UsageQuery`: whose usage
    own_filters: Mapping[str, Sequence[str]]
    digest: str  # of the question, without its page


def question_of(query: Query, kind: Kind, *, now: float | None = None) -> UsageQuestion:
    """Return the question of a request's query. Raises `ApiError` that names what is wrong."""
    parameters = _parameters(query, kind)
    moment = int(time.time() if now is None else now)
    width = _choice(parameters, "bucket_width", kind.widths, "1d")
    times = {
        name: unix_seconds(name, parameters[name][-1]) for name in ("start_time", "end_time") if name in parameters
    }
    if "start_time" not in times:
        raise missing("start_time")
    start, end = times["start_time"], times.get("end_time")
    if end is not None and end <= start:
        raise invalid_value("end_time", f"{end}. The end has to be later than 'start_time', which is {start}.")
    groups = list(dict.fromkeys(parameters.get("group_by", ())))
    for name in groups:
        if name not in kind.groups:
            why = "Usage is not kept by it here. " if name in kind.lacks else ""
            supported = ", ".join(map(repr, kind.groups))
            raise invalid_value("group_by", f"{name[:80]!r}. {why}Supported values are: {supported}.")
    filters: dict[str, Any] = {field: parameters[name] for name, field in kind.filters.items() if name in parameters}
    if "batch" in parameters:
        filters["batch"] = _choice(parameters, "batch", {"true": True, "false": False}, "")
    digest = _digest(parameters)
    first = _page_start(parameters, digest, width)
    if first is None:
        first = start // width.seconds * width.seconds
    if width.stays is not None and first + width.seconds <= moment - width.stays:
        raise _too_long_ago(parameters, width)
    last = min(moment if end is None else end, moment)  # no bucket has begun later
    return UsageQuestion(
        width=width,
        first=first,
        end=-(-last // width.seconds) * width.seconds,
        limit=_limit(parameters, width),
        groups=groups,
        filters={**filters, "sources": kind.sources},
        own_filters={name: parameters[name] for name in kind.own_filters if name in parameters},
        digest=digest,
    )


async def page_of(
    store: "UsageStore",
    question: UsageQuestion,
    results: Callable[[Sequence[UsageSum]], Iterable[UsageResult]],
    *groups: Group,
) -> UsagePage:
    """Return the page of a question, with `results` of the sums of each bucket; these are told apart by `groups`, too.

    Raises `StoreError`, and `ApiError` for too many results.
    """
    seconds = question.width.seconds
    end = max(question.first, min(question.end, question.first + question.limit * seconds))
    query = UsageQuery(
        start=question.first,
        end=end,
        width=seconds,
        groups=[*(GROUPS[name] for name in question.groups if name in GROUPS), *groups],
        limit=MAX_SUMS + 1,
        **question.filters,
    )
    sums = await store.sums(query) if end > question.first else ()
    if len(sums) > MAX_SUMS:
        end = sums[-1].start  # this bucket is not whole
        if end == question.first:
            raise invalid_request(
                f"One bucket has more than {MAX_SUMS:,} results. Group by less, or ask for some projects only.",
                param="group_by",
                code="too_many_results",
            )
    by_start: dict[int, list[UsageSum]] = {}
    for each in sums:
        by_start.setdefault(each.start, []).append(each)
    next_page = _page(end, question.digest) if end < question.end else None
    return {
        "object": "page",
        "data": [
            {
                "object": "bucket",
                "start_time": at,
                "end_time": at + seconds,
                "results": list(results(by_start.get(at, ()))),
            }
            for at in range(question.first, end, seconds)
        ],
        "has_more": next_page is not None,
        "next_page": next_page,
    }


def whose(used: UsageSum, question: UsageQuestion, names: Sequence[str]) -> dict[str, Any]:
    """Return by these names whose usage it is; what is not grouped by, and nobody's, is null."""

    def value(name: str) -> Any:
        if name not in question.groups:
            return None
        owner = UNLABELED if name == API_SOURCE else getattr(used, GROUPS[name])
        return None if owner == "" else owner

    return {name: value(name) for name in names}


def _parameters(query: Query, kind: Kind) -> dict[str, list[str]]:
    """Return all parameters, without brackets. Raises `ApiError` for what the path does not take."""
    several = ("group_by", *kind.filters, *kind.own_filters)
    known = [*several, *_SINGLE, *(("batch",) if kind.by_batch else ())]
    parameters: dict[str, list[str]] = {}
    for name, values in query.items():
        plain = name.removesuffix("[]")
        if plain not in known or (plain != name and plain not in several):
            raise invalid_request(
                f"Unknown parameter: '{name[:80]}'. This path takes {', '.join(sorted(known))}.",
                param=name[:80],
                code="unknown_parameter",
            )
        if any("\0" in value for value in values):
            raise invalid_value(plain, "It has a NUL character.")
        parameters[plain] = [*parameters.get(plain, ()), *values] if plain in several else [values[-1]]
    return {name: values for name, values in parameters.items() if values}


def _choice(parameters: Mapping[str, Sequence[str]], name: str, choices: Mapping[str, Any], usual: str) -> Any:
    value = parameters[name][-1] if name in parameters else usual
    if value not in choices:
        supported = " and ".join(map(repr, choices)) if len(choices) < 3 else ", ".join(map(repr, choices))
        raise invalid_value(name, f"{value[:80]!r}. Supported values are: {supported}.")
    return choices[value]


def _limit(parameters: Mapping[str, Sequence[str]], width: Width) -> int:
    if "limit" not in parameters:
        return width.usual
    limit = whole_number(parameters["limit"][-1], 1, width.most)
    if limit is None:
        raise invalid_value(
            "limit", f"{parameters['limit'][-1][:80]!r}. It takes a whole number of buckets from 1 to {width.most}."
        )
    return limit


def _too_long_ago(parameters: Mapping[str, Sequence[str]], width: Width) -> ApiError:
    assert width.stays is not None, "what is kept for ever is never too long ago"
    kept, wider = ("minute", "'1h' or '1d'") if width.seconds == MINUTE else ("hour", "'1d'")
    return invalid_value(
        "bucket_width",
        f"{parameters['bucket_width'][-1]!r}. Usage is kept by the {kept} for {width.stays // DAY} days, and then "
        f"added up. Ask for {wider}, or for a later 'start_time'.",
    )


def _digest(parameters: Mapping[str, Sequence[str]]) -> str:
    """Return the digest by which a page knows its question: of all of it but the number of buckets."""
    question = sorted((name, values) for name, values in parameters.items() if name not in ("page", "limit"))
    return blake2b(repr(question).encode(), digest_size=_DIGEST).hexdigest()


def _page(start: int, digest: str) -> str:
    return "page_" + urlsafe_b64encode(f"{start:x}.{digest}".encode()).decode().rstrip("=")


def _page_start(parameters: Mapping[str, Sequence[str]], digest: str, width: Width) -> int | None:
    """Return when the page begins that is asked for; None for the first."""
    if "page" not in parameters or not parameters["page"][-1]:
        return None
    page = parameters["page"][-1]
    try:
        told = urlsafe_b64decode(page[:80].removeprefix("page_") + "==").decode()
        start, _, of = told.partition(".")
        first = int(start, 16)
    except (ValueError, NotBase64):
        first, of = -1, ""
    if not 0 <= first <= MAX_TIME or first % width.seconds or of != digest or page != _page(first, digest):
        raise invalid_value(
            "page",
            f"{page[:80]!r}. It takes the 'next_page' of an answer to the same question: all parameters but 'limit' "
            "have to be the same.",
        )
    return first
