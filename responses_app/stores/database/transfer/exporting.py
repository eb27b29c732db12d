"""Out of the database: all that is kept of ended responses, and of conversations, a line each."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from django.db.models import Exists, OuterRef, QuerySet

from responses_app import __version__
from responses_app.models import (
    ChainPart,
    ChatChoice,
    Conversation,
    ConversationItem,
    LogPart,
    PublicName,
    Response,
    SampledItem,
    json_text,
)
from responses_app.protocol.requests.resources import RUNNING
from responses_app.stores.database.transfer import AT_ONCE, BYTES_AT_ONCE, FORMAT, VERSION
from responses_app.stores.database.transfer.rows import Row, row_of

SECTIONS = ("header", "part", "response", "conversation", "end")  # in the order of a file


@dataclass(slots=True)
class Place:
    """Where an export is: what was written last. It goes on behind that."""

    kind: str = ""
    id: str = ""

    def after(self, kind: str) -> str | None:
        """Return the id behind which a section goes on, empty for its beginning; None where it is over."""
        if not self.kind or SECTIONS.index(self.kind) < SECTIONS.index(kind):
            return ""
        return self.id if self.kind == kind else None


@dataclass(slots=True)
class Exported:
    """What was written, and what was left out."""

    parts: int = 0
    responses: int = 0
    conversations: int = 0
    running: list[str] = field(default_factory=list)  # the first of them
    running_count: int = 0


def to_export(project: str | None) -> int:
    """Return how many responses and conversations there are."""
    return _of(Response.objects, project).count() + _of(Conversation.objects, project).count()


def lines(project: str | None, place: Place, counted: Exported) -> Iterator[str]:
    """Yield the lines behind `place`, without their ends; `project` is None for all. `counted` grows meanwhile."""
    if not place.kind:
        yield json_text({"kind": "header", "format": FORMAT, "version": VERSION, "respsite": __version__})
    if (after := place.after("part")) is not None:
        yield from _parts(project, after, counted)
    if (after := place.after("response")) is not None:
        yield from _responses(project, after, counted)
    if (after := place.after("conversation")) is not None:
        yield from _conversations(project, after, counted)
    if place.kind != "end":
        yield json_text({"kind": "end"})


def _parts(project: str | None, after: str, counted: Exported) -> Iterator[str]:
    alone = _of(ChainPart.objects, project).filter(~Exists(Response.objects.filter(pk=OuterRef("pk"))))
    while parts := list(alone.filter(pk__gt=after).order_by("pk")[:AT_ONCE]):
        for part in parts:
            counted.parts += 1
            yield json_text({"kind": "part", "id": part.pk, "part": row_of(part)})
        after = parts[-1].pk


def _responses(project: str | None, after: str, counted: Exported) -> Iterator[str]:
    while ids := _next_ids(project, after):
        for response in _of(Response.objects, None).filter(pk__in=ids, status__in=RUNNING).only("pk"):
            counted.running_count += 1
            counted.running = [*counted.running, response.pk][:AT_ONCE]
        for line in _ended(ids):
            counted.responses += 1
            yield line
        after = ids[-1]


def _next_ids(project: str | None, after: str) -> list[str]:
    """Return the ids of the next responses, fewer where they are large."""
    rows = _of(Response.objects, project).filter(pk__gt=after).order_by("pk").values_list("pk", "size")[:AT_ONCE]
    ids: list[str] = []
    total = 0
    for response_id, size in rows:
        total += size
        if ids and total > BYTES_AT_ONCE:
            break
        ids.append(response_id)
    return ids


def _ended(ids: Sequence[str]) -> Iterator[str]:
    parts = {part.pk: row_of(part) for part in ChainPart.objects.filter(pk__in=ids)}
    names = {name.pk: row_of(name) for name in PublicName.objects.filter(pk__in=ids)}
    choices = {choice.pk: row_of(choice) for choice in ChatChoice.objects.filter(pk__in=ids)}
    sampled, logs = defaultdict[str, list[Row]](list), defaultdict[str, list[Row]](list)
    for item in SampledItem.objects.filter(response_id__in=ids).order_by("pk"):
        sampled[item.response_id].append(row_of(item))
    for log in LogPart.objects.filter(response_id__in=ids).order_by("response_id", "position"):
        logs[log.response_id].append(row_of(log))
    for response in Response.objects.filter(pk__in=ids).exclude(status__in=RUNNING).order_by("pk"):
        key = response.pk
        whole = {"response": row_of(response), "part": parts.get(key), "sampled": sampled[key], "log": logs[key]}
        yield json_text({"kind": "response", "id": key, **whole, "name": names.get(key), "choice": choices.get(key)})


def _conversations(project: str | None, after: str, counted: Exported) -> Iterator[str]:
    while found := list(_of(Conversation.objects, project).filter(pk__gt=after).order_by("pk")[:AT_ONCE]):
        for conversation in found:
            counted.conversations += 1
            yield json_text({"kind": "conversation", "id": conversation.pk, "conversation": row_of(conversation)})
            yield from _items(conversation.pk)
        after = found[-1].pk


def _items(conversation_id: str) -> Iterator[str]:
    position = 0
    while rows := _next_items(conversation_id, position):
        yield json_text({"kind": "items", "id": conversation_id, "items": [row_of(row) for row in rows]})
        position = rows[-1].position


def _next_items(conversation_id: str, position: int) -> list[ConversationItem]:
    rows = ConversationItem.objects.filter(conversation_id=conversation_id, position__gt=position).order_by("position")
    return list(rows[:AT_ONCE])


def _of(rows: "QuerySet", project: str | None) -> "QuerySet":  # type: ignore[type-arg]
    return rows.all() if project is None else rows.filter(project=project)
