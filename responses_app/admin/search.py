"""Search for responses by ids. Only indexes are read, never the bodies."""

from django.db import connections
from django.db.models import Model, QuerySet

from responses_app.models import ID_LENGTH, ChainPart, ConversationItem, PublicName, Response

HELP = (
    "Finds a response by its id or the beginning of it, the responses that clients know by another id, those that "
    "continue one by its whole id, and those of a conversation by its whole id."
)
MAX_FOUND = 1_000  # of each kind


def found_ids(term: str) -> list[str]:
    """Return the ids of the responses that a search is for."""
    term = term.strip()
    if not 0 < len(term) <= ID_LENGTH or not term.isascii() or not term.isprintable():
        return []
    ids = list(beginning_with(Response.objects.all(), term).order_by("-pk").values_list("pk", flat=True)[:MAX_FOUND])
    ids += PublicName.objects.filter(name=term).order_by("-leg").values_list("pk", flat=True)[:MAX_FOUND]
    ids += ChainPart.objects.filter(parent_id=term).values_list("pk", flat=True)[:MAX_FOUND]
    appended = ConversationItem.objects.filter(conversation_id=term).exclude(response_id="")
    ids += appended.order_by().values_list("response_id", flat=True).distinct()[:MAX_FOUND]
    return ids


def beginning_with(queryset: "QuerySet[Model]", beginning: str) -> "QuerySet[Model]":
    """Return the rows whose id begins so, by the index on it.

    PostgreSQL has one for LIKE. SQLite's LIKE knows no case and so no index; its order of text is that of code points.
    """
    if connections[queryset.db].vendor == "sqlite":
        return queryset.filter(pk__gte=beginning, pk__lt=beginning[:-1] + chr(ord(beginning[-1]) + 1))
    return queryset.filter(pk__startswith=beginning)
