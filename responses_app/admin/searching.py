"""How the list of responses is searched: by ids, and, for who may see content, by what was asked and answered.

A search by content is a look at content, so it is recorded in the audit trail: that there was one, its filters and how
many it found. The words are not: they are likely to be a user's.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from django.db import connection, connections
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from responses_app.admin.filters import AGES, AgeFilter, ProjectFilter, cut
from responses_app.models import ID_LENGTH, ChainPart, ConversationItem, PublicName, Response
from responses_app.protocol.items.said import MAX_SEARCH, phrases_of
from responses_app.stores.audit import Action
from responses_app.stores.database.words import SearchTooSlow, WordsQuery, find, is_behind
from responses_app.watch.auditing import done

HELP = (
    "Finds a response by its id or the beginning of it, the responses that clients know by another id, those that "
    "continue one by its whole id, and those of a conversation by its whole id. "
)
CONTENT_HELP = (
    'Anything else is looked for in what was asked and answered: words that are all there, "words next to each other", '
    "and begin* for a beginning. Such a search is recorded in the audit trail."
)
NO_CONTENT_HELP = "What was asked and answered is not searched: your permissions do not include the content."
MAX_FOUND = 1_000  # of each kind
SEARCH_SECONDS = 2.0  # that a search by content may take
_IS_ID = re.compile(r"[a-z]+[_-][0-9A-Za-z]{8,}")


def found_ids(term: str) -> list[str]:
    """Return the ids of the responses that a search is for."""
    term = term.strip()
    if not _may_be_id(term):
        return []
    ids = list(beginning_with(Response.objects.all(), term).order_by("-pk").values_list("pk", flat=True)[:MAX_FOUND])
    ids += PublicName.objects.filter(name=term).order_by("-leg").values_list("pk", flat=True)[:MAX_FOUND]
    ids += ChainPart.objects.filter(parent_id=term).values_list("pk", flat=True)[:MAX_FOUND]
    appended = ConversationItem.objects.filter(conversation_id=term).exclude(response_id="")
    ids += appended.order_by().values_list("response_id", flat=True).distinct()[:MAX_FOUND]
    return ids


def beginning_with(queryset: "QuerySet[Model]", beginning: str) -> "QuerySet[Model]":
    """Return the rows whose id begins so, by the index on it; none where no id can.

    PostgreSQL has one for LIKE. SQLite's LIKE knows no case and so no index; its order of text is that of code points.
    """
    if not _may_be_id(beginning):
        return queryset.none()
    if connections[queryset.db].vendor == "sqlite":
        # From "resp_1" to before "resp_2": all that begins with "resp_1".
        return queryset.filter(pk__gte=beginning, pk__lt=beginning[:-1] + chr(ord(beginning[-1]) + 1))
    return queryset.filter(pk__startswith=beginning)


def _may_be_id(text: str) -> bool:
    return 0 < len(text) <= ID_LENGTH and text.isascii() and text.isprintable()


def said_ids(request: HttpRequest, term: str) -> tuple[list[str], str]:
    """Return the ids of the newest responses in which this was said, and what there is to say about the search.

    Projects and dates that are chosen narrow the search itself, other filters what it finds.
    Raises `AuditUnavailable`.
    """
    term = term.strip()
    if not term or _IS_ID.fullmatch(term):
        return [], ""
    phrases = phrases_of(term)
    if not phrases:
        return [], "A search needs letters or digits: there is nothing to look for in this one."
    since, until = _dates(request.GET)
    project = cut(request.GET.get(ProjectFilter.parameter_name, ""))
    query = WordsQuery(
        phrases=phrases, project=project, since=since, until=until, limit=MAX_FOUND, seconds=SEARCH_SECONDS
    )
    try:
        ids = find(connection, query)
    except SearchTooSlow:
        _record(request, project, found="ended after its time")
        return [], (
            f"The search was ended after {SEARCH_SECONDS:g} s. Choose a project or dates, or look for rarer words."
        )
    _record(request, project, found=len(ids))
    notes = []
    if len(ids) == MAX_FOUND:
        notes.append(
            f"These are the newest {MAX_FOUND:,} with these words. Choose a project or dates to look further back."
        )
    if len(term) > MAX_SEARCH:
        notes.append(f"Only the first {MAX_SEARCH:,} characters were looked for.")
    if is_behind(connection):
        notes.append("Older responses are not in the index yet: the server still reads them.")
    return ids, " ".join(notes)


def _record(request: HttpRequest, project: str, *, found: int | str) -> None:
    narrowed = {name: cut(value)[:ID_LENGTH] for name, value in sorted(request.GET.items()) if name not in ("q", "p")}
    done(request, Action.CONTENT_SEARCHED, "list of responses", project=project, found=found, filters=narrowed)


def _dates(asked: Mapping[str, str]) -> tuple[datetime | None, datetime | None]:
    """Return the time that the dates of an address stand for: since, and until. What cannot be read is left out."""
    year, month, day = (asked.get(f"created_at__{part}") for part in ("year", "month", "day"))
    since = until = None
    try:
        if year:
            since = datetime(int(year), int(month or 1), int(day or 1), tzinfo=UTC)
            next_month = (since.replace(day=28) + timedelta(days=4)).replace(day=1)
            until = since + timedelta(days=1) if day else next_month if month else since.replace(year=since.year + 1)
    except (ValueError, OverflowError):
        since = until = None
    age = asked.get(str(AgeFilter.parameter_name), "")
    if age in AGES:
        from_then = datetime.now(UTC) - timedelta(seconds=AGES[age][1])
        since = max(since, from_then) if since else from_then
    return since, until
