"""What items carry, as the model reads it: files (`FileReading`), and what this server has sealed (`Unsealing`)."""

import asyncio
import logging
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING

from responses_app.protocol.errors import invalid_encrypted_content
from responses_app.protocol.items import compaction
from responses_app.protocol.items.compaction import Compacted
from responses_app.protocol.items.items import (
    Compaction,
    InputItem,
    MediaPart,
    OpenedCompaction,
    Reasoning,
    SampledInput,
    TextPart,
)
from responses_app.protocol.items.media import (
    MAX_FILES,
    MAX_TEXT,
    DocumentUnreadable,
    ReadDocument,
    Shown,
    as_reason,
    data_of,
    files_in,
    is_image,
    omitted_file,
    plain_text,
    shown_file,
    with_files,
)
from responses_app.protocol.prompt.rendering import Items
from responses_app.protocol.prompt.replaying import SEAL_PURPOSE, SealedOthers, read_seal, with_exact_tokens
from responses_app.protocol.sealing import SealBroken, Sealer
from responses_app.resources.files.fields import FileGone

if TYPE_CHECKING:
    from responses_app.resources.files.store import Files

logger = logging.getLogger("respsite.runs")

MAX_BYTES = 32 * 1024 * 1024  # of a file that is looked into
READ_SECONDS = 60.0  # for the documents of one request, together
MAX_REMEMBERED = 32 << 20  # bytes of documents that were read: a client that keeps its history sends them again


See = Callable[[str, bytes], Awaitable[Shown]]  # an image's name and content → its picture, or a note


async def no_reader(name: str, content: bytes) -> str:
    """Read nothing: for a server that reads plain text only."""
    raise DocumentUnreadable("it is not plain text.")


class FileReading:
    """The reader of files in `files`; what is not plain text is read by `read_document`."""

    def __init__(self, files: "Files", read_document: ReadDocument) -> None:
        self._files = files
        self._read_document = read_document
        self._texts: OrderedDict[tuple[str, bytes], str] = OrderedDict()  # by project and content, the latest last
        self._size = 0  # bytes of memory of `_texts`

    async def read(self, project: str, before: Items, own: Items, *, see: See | None = None) -> tuple[Items, Items]:
        """Return items with their files as the model reads them. Raises `StoreError`.

        The request's `own` files come first, where there are more than are read. `see` shows a file that is an image.
        """
        shown_files: dict[int, Shown] = {}  # by the parts' identities: nobody changes the items meanwhile
        room, until = MAX_TEXT, asyncio.get_running_loop().time() + READ_SECONDS
        for count, part in enumerate([*files_in(own.parsed), *files_in(before.parsed)]):
            if count >= MAX_FILES or room <= 0:
                shown = omitted_file(part.filename, "there are too many")
            else:
                shown = await self._shown(project, part, room, until, see)
            room -= 0 if shown.omitted else len(shown.text)
            shown_files[id(part)] = shown

        def replaced(items: Items) -> Items:
            return Items(with_files(items.parsed, lambda part: shown_files.get(id(part))), items.raw)

        return replaced(before), replaced(own)

    async def _shown(self, project: str, part: MediaPart, room: int, until: float, see: See | None) -> Shown:
        """Return what the model reads or sees of a file, or a note."""
        name, content = part.filename, None
        if part.file_id:
            record = await self._files.get(project, part.file_id)
            if record is None:
                return omitted_file(name, "there is no such file, or it has expired")
            name = record.filename
            try:
                content = await self._files.content(project, part.file_id, max_bytes=MAX_BYTES)
            except FileGone:
                return omitted_file(name, "it has been deleted")
        # Base64 has 4 characters for 3 bytes.
        elif len(part.file_data or "") <= MAX_BYTES * 4 // 3:
            content = await asyncio.to_thread(data_of, part.file_data or "")
            if content is None:
                return omitted_file(name, "its data is not base64")
        if content is None:
            return omitted_file(name, f"it is larger than {MAX_BYTES // 2**20} MiB")
        name = name or "file"
        if see is not None and is_image(content):
            return await see(name, content)
        return await self._read(project, name, content, room, until)

    async def _read(self, project: str, name: str, content: bytes, room: int, until: float) -> Shown:
        """Return what the model reads of a file's content, or a note."""
        text = await asyncio.to_thread(plain_text, content)
        if text is None:
            try:
                # One deadline for all files of the request, not one for each.
                async with asyncio.timeout_at(until):
                    text = await self._document(project, name, content)
            except TimeoutError:
                return omitted_file(name, "the files of this request take too long to read")
            except DocumentUnreadable as problem:
                logger.info("a file of %d bytes could not be read: %s", len(content), problem)
                return omitted_file(name, as_reason(problem))
        return await asyncio.to_thread(shown_file, name, text, room=room)

    async def _document(self, project: str, name: str, content: bytes) -> str:
        """Return the text of a document, remembered or read. Raises `DocumentUnreadable`."""
        key = (project, (await asyncio.to_thread(blake2b, content, digest_size=16)).digest())
        # Taken out and put back at the end: the one that was not asked for longest is the first.
        text = self._texts.pop(key, None)
        if text is None:
            text = await self._read_document(name, content)
        else:
            self._size -= sys.getsizeof(text)
        if key not in self._texts:  # another request may have read it meanwhile
            self._texts[key] = text
            self._size += sys.getsizeof(text)  # of other than Latin text a character takes two or four bytes
        while self._size > MAX_REMEMBERED:
            self._size -= sys.getsizeof(self._texts.popitem(last=False)[1])
        return text


UNREADABLE_THOUGHT = "[what you thought here is left out: it was sealed elsewhere, and cannot be read here]"


def is_sealed(items: Items) -> bool:
    """Whether any of these items has something to open."""
    return any(
        isinstance(item, Compaction) or (isinstance(item, Reasoning) and bool(item.encrypted_content))
        for item in items.parsed
    )


class Unsealing:
    """Opens the seals of one request's items, for their `project`.

    `note` is told the paths of those that cannot be opened, and the model reads what can be read of them; without it
    they are errors.
    """

    def __init__(self, sealer: Sealer, project: str, *, note: Callable[[str], None] | None = None) -> None:
        self._open = sealer.open
        self._project = project
        self._note = note
        self._level = logging.WARNING  # of the next line of the log: one for a request is enough

    def opened(self, items: Items, *, named: bool) -> Items:
        """Return items as the model is to read them.

        Raises `ApiError` for a broken seal in a request, whose items are `named` in errors. A conversation keeps what
        it was given: there the model reads what can be read of such an item, or else a note, as with `note`.
        """
        parsed = list(items.parsed)
        others: dict[int, SealedOthers] = {}
        for place, item in enumerate(parsed):
            at = f"input[{place}].encrypted_content" if named else None
            if isinstance(item, Compaction):
                parsed[place] = self._compaction(item, at)
            elif isinstance(item, Reasoning) and item.encrypted_content:
                parsed[place], told = self._reasoning(item, item.encrypted_content, at)
                if told is not None:
                    others[place] = told
        return Items(_told(parsed, items, others) if others else parsed, items.raw)

    def _compaction(self, item: Compaction, at: str | None) -> InputItem:
        try:
            data = self._open(compaction.PURPOSE, self._project, item.encrypted_content)
            return OpenedCompaction(Compacted.from_bytes(data), item.id)
        except SealBroken as problem:
            self._unread(item, at, "leave the item out", problem)
            return item

    def _reasoning(self, item: Reasoning, sealed: str, at: str | None) -> tuple[InputItem, SealedOthers | None]:
        try:
            seal = read_seal(self._open(SEAL_PURPOSE, self._project, sealed))
        except SealBroken as problem:
            self._unread(item, at, "leave 'encrypted_content' out: then the item's text is read", problem)
            visible = item.content or item.summary or [TextPart(type="reasoning_text", text=UNREADABLE_THOUGHT)]
            return item.model_copy(update={"content": visible}), None
        if item.exact is not None:  # it is known with its whole turn; the seal only had to be good
            return item, None
        if isinstance(seal, SealedOthers):
            return item, seal
        return seal.opened(item), None

    def _unread(self, item: Compaction | Reasoning, at: str | None, instead: str, problem: SealBroken) -> None:
        """Tell of a seal that is broken. Raises `ApiError` where that is an error."""
        if at is not None and self._note is None:
            raise invalid_encrypted_content(item.encrypted_content or "", at, instead=instead) from problem
        named = at or f"the seal of {item.id} in a conversation"
        logger.log(self._level, "%s cannot be read, and the model is told so: %s", named, problem)
        self._level = logging.DEBUG
        if at is not None and self._note is not None:
            self._note(at)


def _told(parsed: list[InputItem], items: Items, others: Mapping[int, SealedOthers]) -> list[InputItem]:
    """Return items with what the seals of others tell of them; what a seal of its own says is edited stays so."""
    for place, exact in with_exact_tokens(items.raw, others):
        item = parsed[place]
        if isinstance(item, Reasoning) and item.encrypted_content and item.exact is None:
            continue
        if isinstance(item, SampledInput):
            parsed[place] = item.with_exact(exact)
    return parsed
