"""What is kept of ended responses, and of conversations, as lines of JSON: out of the database, and into another one.

A row is its model's fields (`row_of`, `instance_of`). A second import changes nothing: what is there is passed over.
"""

import re
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

from django.db import connection, models, transaction
from django.db.models import Exists, OuterRef, QuerySet

from engine import orjson
from responses_app import __version__
from responses_app.kit.columns import JSONTextField
from responses_app.kit.kept import Line, kept_models
from responses_app.models import BriefResponse, ChainPart, ChatChoice, Response, json_text
from responses_app.models.pictures import Picture, PictureUse
from responses_app.protocol.chat.completion import ChatForm, stored_completion, stored_messages
from responses_app.protocol.json_text import one_line
from responses_app.protocol.requests.resources import RUNNING, ResponseObject
from responses_app.resources.conversations.model import Conversation, ConversationItem
from responses_app.stores.database.pictures import picture_id
from responses_app.stores.database.transfer import AT_ONCE, BYTES_AT_ONCE, FORMAT, VERSION

Row = dict[str, Any]
M = TypeVar("M", bound=models.Model)
_UNFIT = re.compile("[\x00\ud800-\udfff]")  # NUL and lone surrogates, which PostgreSQL refuses; JSON escapes them


def row_of(instance: models.Model) -> Row:
    """Return a row as JSON; a number that the database gives it is left out."""
    return {field.attname: _written(getattr(instance, field.attname)) for field in _fields(type(instance))}


def instance_of(model: type[M], row: Mapping[str, Any]) -> M:
    """Return the model's instance of a row that `row_of` wrote. Raises `ValueError` for what is none.

    A field that the row lacks has its default: an older version wrote it.
    """
    fields = {field.attname: field for field in _fields(model)}
    if unknown := row.keys() - fields.keys():
        raise ValueError(f"{model.__name__} has no {min(unknown)!r}")
    return model(**{name: _read(fields[name], value) for name, value in row.items()})


def _fields(model: type[models.Model]) -> list[Any]:
    return [field for field in model._meta.concrete_fields if not isinstance(field, models.AutoField)]


def _written(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else value


def _read(field: Any, value: Any) -> Any:
    if value is None:
        if not field.null:
            raise ValueError(f"{field.name!r} is null")
        return None
    if isinstance(field, models.BinaryField):
        return b64decode(value, validate=True)
    if isinstance(field, models.DateTimeField):
        return datetime.fromisoformat(value)
    if isinstance(field, JSONTextField):
        return value
    if isinstance(field, models.CharField | models.ForeignKey | models.TextField):
        # A foreign key is a text of its target's length: all ids are texts.
        most = field.max_length or (field.target_field.max_length if isinstance(field, models.ForeignKey) else None)
        if not isinstance(value, str) or (most is not None and len(value) > most) or _UNFIT.search(value):
            raise ValueError(f"{field.name!r} is not a text that this table takes")
    elif isinstance(field, models.IntegerField):
        least, most = connection.ops.integer_field_range(field.get_internal_type())
        # `type`, not `isinstance`: True is an int, too.
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{field.name!r} is not a number that this table takes")
    return value


SECTIONS = ("header", "part", "response", "picture", "conversation", "end")  # in the order of a file


@dataclass(slots=True)
class ExportPlace:
    """Where an export is: what was written last. It goes on behind that."""

    kind: str = ""  # one of SECTIONS; "" before the first line
    id: str = ""  # of the last row of that kind

    def after(self, kind: str) -> str | None:
        """Return the id behind which a section goes on, empty for its beginning; None where it is over."""
        if not self.kind or SECTIONS.index(self.kind) < SECTIONS.index(kind):
            return ""
        return self.id if self.kind == kind else None


@dataclass(slots=True)
class Exported:
    """What was written, and what was left out."""

    parts: int = 0  # of chains whose response is gone
    responses: int = 0
    conversations: int = 0
    running: list[str] = field(default_factory=list)  # the first of them
    running_count: int = 0  # responses that were left out since they run


def to_export(project: str | None) -> int:
    """Return how many responses and conversations there are."""
    return _of(Response.objects, project).count() + _of(Conversation.objects, project).count()


def lines(project: str | None, place: ExportPlace, counted: Exported) -> Iterator[str]:
    """Yield the lines behind `place`, without their ends; `project` is None for all. `counted` grows meanwhile."""
    for line in _lines(project, place, counted):
        yield one_line(line.encode()).decode()


def _lines(project: str | None, place: ExportPlace, counted: Exported) -> Iterator[str]:
    if not place.kind:
        yield json_text({"kind": "header", "format": FORMAT, "version": VERSION, "respsite": __version__})
    if (after := place.after("part")) is not None:
        # The parts of responses come with them.
        alone = _of(ChainPart.objects, project).filter(~Exists(Response.objects.filter(pk=OuterRef("pk"))))
        while parts := list(alone.filter(pk__gt=after).order_by("pk")[:AT_ONCE]):
            for part in parts:
                counted.parts += 1
                yield json_text({"kind": "part", "id": part.pk, "part": row_of(part)})
            after = parts[-1].pk
    if (after := place.after("response")) is not None:
        yield from _responses(project, after, counted)
    if (after := place.after("picture")) is not None:
        # One at a time: each may have megabytes.
        while (picture := _of(Picture.objects, project).filter(pk__gt=after).order_by("pk").first()) is not None:
            owners = list(picture.uses.order_by("owner").values_list("owner", flat=True))
            yield json_text({"kind": "picture", "id": picture.pk, "picture": row_of(picture), "owners": owners})
            after = picture.pk
    if (after := place.after("conversation")) is not None:
        yield from _conversations(project, after, counted)
    if place.kind != "end":
        yield json_text({"kind": "end"})


def _responses(project: str | None, after: str, counted: Exported) -> Iterator[str]:
    while ids := _next_ids(project, after):
        for response in _of(Response.objects, None).filter(pk__in=ids, status__in=RUNNING).only("pk"):
            counted.running_count += 1
            counted.running = [*counted.running, response.pk][:AT_ONCE]
        beside = [(each, each.rows_of(ids)) for each in moved_with(Response)]
        for response in Response.objects.filter(pk__in=ids).exclude(status__in=RUNNING).order_by("pk"):
            counted.responses += 1
            further = {each.line.name: each.written(rows[response.pk]) for each, rows in beside}
            yield json_text({"kind": "response", "id": response.pk, "response": row_of(response), **further})
        after = ids[-1]


def _next_ids(project: str | None, after: str) -> list[str]:
    """Return the ids of the next responses, fewer where they are large."""
    unstored = BriefResponse.objects.filter(pk=OuterRef("pk"))  # `store: false`: kept here for a few minutes only
    rows = (
        _of(Response.objects, project)
        .filter(~Exists(unstored), pk__gt=after)
        .order_by("pk")
        .values_list("pk", "size")[:AT_ONCE]
    )
    ids: list[str] = []
    total = 0
    for response_id, size in rows:
        total += size
        # One at least, however large it is.
        if ids and total > BYTES_AT_ONCE:
            break
        ids.append(response_id)
    return ids


@dataclass(frozen=True, slots=True)
class Moved:
    """Rows of another table that go along with a row: one that has its id, or any number that refer to it."""

    model: type[models.Model]
    line: Line
    link: str  # the column of the row's id
    many: bool

    def rows_of(self, ids: Sequence[str]) -> defaultdict[str, list[Row]]:
        """Return the rows that belong to each of these."""
        rows = defaultdict[str, list[Row]](list)
        for row in self.model._default_manager.filter(**{f"{self.link}__in": ids}).order_by(self.line.by):
            rows[getattr(row, self.link)].append(row_of(row))
        return rows

    def written(self, rows: list[Row]) -> list[Row] | Row | None:
        """Return rows as a line has them: one, if there is it, or all."""
        return rows if self.many else next(iter(rows), None)


@cache
def moved_with(owner: type[models.Model]) -> list[Moved]:
    """Return what goes along with the rows of a model, in the order of a line."""
    moved = []
    for model in kept_models():
        if model.kept.moved and model.kept.owner == owner.__name__:
            links = [field.attname for field in model._meta.concrete_fields if field.related_model is owner]
            moved.append(Moved(model, model.kept.moved, links[0] if links else "pk", bool(links)))
    return sorted(moved, key=lambda each: each.line.order)


def _conversations(project: str | None, after: str, counted: Exported) -> Iterator[str]:
    while rows := list(_of(Conversation.objects, project).filter(pk__gt=after).order_by("pk")[:AT_ONCE]):
        for conversation in rows:
            counted.conversations += 1
            yield json_text({"kind": "conversation", "id": conversation.pk, "conversation": row_of(conversation)})
            items = ConversationItem.objects.filter(conversation_id=conversation.pk).order_by("position")
            position = 0
            while some := list(items.filter(position__gt=position)[:AT_ONCE]):
                yield json_text({"kind": "items", "id": conversation.pk, "items": [row_of(item) for item in some]})
                position = some[-1].position
        after = rows[-1].pk


def _of(rows: "QuerySet", project: str | None) -> "QuerySet":  # type: ignore[type-arg]
    return rows.all() if project is None else rows.filter(project=project)


KEPT_BROKEN = 100  # lines that cannot be read, of which the reason is kept


class NotAnExport(Exception):
    """What is read is not what an export writes; the text says so to people."""


@dataclass(slots=True)
class Imported:
    """What has been read so far."""

    parts: int = 0
    responses: int = 0
    conversations: int = 0
    there: int = 0  # in the database already, and left as they are
    broken: int = 0  # lines that cannot be read
    reasons: list[str] = field(default_factory=list)  # of the first `KEPT_BROKEN` of them
    is_whole: bool = False  # its last line is `end`

    @property
    def seen(self) -> int:
        """How many responses and conversations were read, good or not."""
        return self.responses + self.conversations + self.there + self.broken


@dataclass(slots=True)
class _Shown:
    """A picture, and who needs it."""

    picture: Picture  # its row
    uses: list[PictureUse]  # the rows of its owners


@dataclass(slots=True)
class _Whole:
    """A response with all that belongs to it."""

    response: Response  # its row
    further: list[models.Model]  # rows of other tables that belong to it


def take_in(lines: Iterable[bytes], counted: Imported) -> Iterator[Imported]:
    """Write lines into the database, and yield `counted`, which grows, behind each step. Raises `NotAnExport`.

    Each step is a transaction: a file whose import was cut is imported once more, and what is there is passed over.
    """
    numbered = enumerate(lines, 1)
    _check_header(next(numbered, (1, b""))[1])
    batch: list[_Read] = []
    size = 0
    conversation = _ConversationTaker(counted)
    for number, line in numbered:
        record = _record(number, line, counted)
        kind = record.get("kind")
        counted.is_whole = kind == "end"
        if kind is None:
            conversation.spoil()
            continue
        # Conversations have a transaction of their own, over several lines: what is gathered is written before.
        if kind in ("items", "conversation"):
            _write(batch, counted)
            batch, size = [], 0
            conversation.take(number, record)
            yield counted
            continue
        conversation.end()
        if kind in _READERS and (read := _read_line(number, record, counted)) is not None:
            batch.append(read)
            size += len(line)
        if len(batch) >= AT_ONCE or size >= BYTES_AT_ONCE:
            _write(batch, counted)
            batch, size = [], 0
            yield counted
    if not counted.is_whole:
        conversation.spoil()
    conversation.end()
    _write(batch, counted)
    yield counted


def _check_header(line: bytes) -> None:
    try:
        header = _loads(line)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise NotAnExport("This file was not written by `respsite export`.")
    if header.get("version") != VERSION:
        raise NotAnExport("A newer version wrote this file: install that one.")


def _record(number: int, line: bytes, counted: Imported) -> Row:
    try:
        record = _loads(line)
    except ValueError:
        return _broken(number, "it is cut, or no JSON", counted)
    except RecursionError:
        return _broken(number, "it is nested too deeply", counted)
    return record if isinstance(record, dict) else _broken(number, "it is not a JSON object", counted)


def _loads(line: bytes) -> Any:
    return orjson.loads_kept(line)


def _broken(number: int, reason: object, counted: Imported) -> Row:
    counted.broken += 1
    if len(counted.reasons) < KEPT_BROKEN:
        counted.reasons.append(f"line {number}: {reason}")
    return {}


def _read_line(number: int, record: Row, counted: Imported) -> "_Read | None":
    try:
        return _READERS[record["kind"]](record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        _broken(number, error, counted)
        return None


def _checked(instance: M, response: Response | None = None) -> M:
    """Return a row that goes along with a response. Raises an error for one that would break more than itself."""
    if isinstance(instance, ChainPart) and instance.parent_id == instance.pk:
        raise ValueError("it goes on from itself")
    if isinstance(instance, ChatChoice) and response is not None:
        # One that cannot be written as a completion would break every list of its project.
        stored_messages(instance.first_id, instance.messages)
        body: ResponseObject = response.body | {"status": response.status}
        stored_completion([body], ChatForm.from_json(instance.form), instance.metadata)
    return instance


def _shown(record: Row) -> _Shown:
    picture = instance_of(Picture, record["picture"])
    if picture.pk != picture_id(picture.project, picture.digest):
        raise ValueError("its id is not that of its digest")
    row = {"picture_id": picture.pk, "created_at": record["picture"]["used_at"]}
    return _Shown(picture, [instance_of(PictureUse, {**row, "owner": owner}) for owner in record["owners"]])


def _whole(record: Row) -> _Whole:
    response = instance_of(Response, record["response"])
    if response.status in RUNNING:
        raise ValueError("a response that runs cannot be imported")
    # It belongs to no worker of this server, and is not to be run.
    response.worker, response.request = "", None
    further: list[models.Model] = []
    owners = set()
    for each in sorted(moved_with(Response), key=lambda each: each.many):
        written = record.get(each.line.name) or []
        for row in written if each.many or not written else [written]:
            instance = _checked(instance_of(each.model, row), response)
            owners.add(getattr(instance, each.link))
            further.append(instance)
    if owners - {response.pk}:
        raise ValueError("it holds rows of another response")
    if any(getattr(each, "project", response.project) != response.project for each in further):
        raise ValueError("it holds rows of another project")
    return _Whole(response, further)


_Read = _Whole | _Shown | ChainPart
_READERS: Mapping[str, Callable[[Row], _Read]] = {
    "part": lambda record: _checked(instance_of(ChainPart, record["part"])),
    "response": _whole,
    "picture": _shown,
}


def _write(batch: Sequence[_Read], counted: Imported) -> None:
    """Write what is not there, in one transaction; what another process writes meanwhile is left as it is."""
    if not batch:
        return
    wholes = {each.response.pk: each for each in batch if isinstance(each, _Whole)}
    parts = {each.pk: each for each in batch if isinstance(each, ChainPart)}
    with transaction.atomic():
        there = set(Response.objects.filter(pk__in=wholes).values_list("pk", flat=True))
        there_parts = set(ChainPart.objects.filter(pk__in=parts).values_list("pk", flat=True))
        new = [each for key, each in wholes.items() if key not in there]
        _create(Response, [each.response for each in new])
        further: dict[type[models.Model], list[models.Model]] = {
            ChainPart: [part for key, part in parts.items() if key not in there_parts]
        }
        for each in new:
            for row in each.further:
                further.setdefault(type(row), []).append(row)
        for model, rows in further.items():
            _create(model, rows)
        shown = [each for each in batch if isinstance(each, _Shown)]
        _create(Picture, [each.picture for each in shown])
        _create(PictureUse, [use for each in shown for use in each.uses])
    counted.responses += len(new)
    counted.there += len(there)
    counted.parts += len(parts) - len(there_parts)


def _create(model: type[models.Model], rows: list[Any]) -> None:
    model._default_manager.bulk_create(rows, batch_size=AT_ONCE, ignore_conflicts=True)


class _ConversationTaker:
    """Writes a conversation and its items, which come behind it, in one transaction of their own."""

    def __init__(self, counted: Imported) -> None:
        self._counted = counted
        self._open: transaction.Atomic | None = None
        self._is_whole = True  # nothing of what is open is missing
        self._id: str | None = None  # whose items are written; None: those that come are passed over

    def take(self, number: int, record: Row) -> None:
        """Take a conversation, or items of the one before."""
        try:
            if record["kind"] == "conversation":
                self.end()
                self._begin(instance_of(Conversation, record["conversation"]))
            elif self._id == record["id"]:
                rows = [instance_of(ConversationItem, row) for row in record["items"]]
                if any(row.conversation_id != self._id for row in rows):
                    raise ValueError("it holds items of another conversation")
                _create(ConversationItem, rows)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _broken(number, error, self._counted)
            self.spoil()

    def spoil(self) -> None:
        """Leave out what is open: something of it cannot be read, or may be missing."""
        self._is_whole = False

    def _begin(self, conversation: Conversation) -> None:
        if Conversation.objects.filter(pk=conversation.pk).exists():
            self._counted.there += 1
            return
        self._open = transaction.atomic()
        # By hand, since it spans several calls of `take`.
        self._open.__enter__()
        self._id, self._is_whole = conversation.pk, True
        _create(Conversation, [conversation])
        self._counted.conversations += 1

    def end(self) -> None:
        """Commit what is open, if it is whole: else the next import may find it so."""
        opened, self._open, self._id = self._open, None, None
        if opened is None:
            return
        if not self._is_whole:
            transaction.set_rollback(True)
            self._counted.conversations -= 1
        opened.__exit__(None, None, None)
