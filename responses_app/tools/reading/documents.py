"""What a file says: PDF, DOCX, HTML or any text in, chunks of text out. Runs as a process of its own.

    python -m responses_app.tools.reading.documents

Headers have `name`, the file's, `chunk_size` and `chunk_overlap`, and `max_chunks`, and answers `chunks`; with
`max_text` in their place answers have `text`, up to so many characters. Either has `code` and `message` where there is
none (see `reading_process`). What a file is, its content says; its name only tells text from text.
"""

import io
import re
import zipfile
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from responses_app.protocol.files.searches import Chunking, chunks_of
from responses_app.tools.reading.pages import decoded, said_by
from responses_app.tools.reading.processes import serve

if TYPE_CHECKING:
    from docx.table import Table

MAX_TEXT = 20_000_000  # characters of one file
MAX_PAGES = 5000  # of a PDF
MAX_UNPACKED = 200 * 1024 * 1024  # bytes of a DOCX, which is a zip of XML
MAX_UNPACKED_XML = 32 * 1024 * 1024  # bytes of its text: the tree that is made of it takes twenty times as much
MAX_PARTS = 5000  # of a DOCX
CPU_SECONDS = 60  # for one file; it ends a process whose server is gone
MEMORY_BYTES = 2 * 1024**3  # of address space
_PDF, _ZIP = b"%PDF-", b"PK\x03\x04"  # how PDFs and zips begin
_OLD_WORD = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # how files of Word up to 2003 begin
_BEGINNING = 1024  # bytes in which PDFs and pages begin
_DOCX_TEXT = "word/document.xml"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks
# Twenty blanks or more, as tables of PDFs have them.
_BLANKS = re.compile(r"[^\S\n]{20,}")
_EMPTY_LINES = re.compile(r"\n{3,}")
# Control characters, of which PostgreSQL takes no NUL, and half characters.
_UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")

Code = Literal["unsupported_file", "invalid_file"]


class UnreadableFile(Exception):
    """A file gives no text; `code` is OpenAI's, the message is for its owner."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def text_of(name: str, body: bytes) -> str:
    """Return the text of a file. Raises `UnreadableFile`, and whatever a parser does."""
    beginning = body[:_BEGINNING]
    # Anywhere in the beginning: some PDFs have a line of something else first.
    if _PDF in beginning:
        text = _bounded(_pdf_texts(body))
    elif beginning.startswith(_ZIP):
        text = _bounded(_docx_texts(body))
    else:
        text = _plain_text(name, body)
    if len(text) > MAX_TEXT:
        raise _too_long()
    # Lines without the blanks at their ends; `splitlines` takes all kinds of line ends.
    lines = "\n".join(line.rstrip() for line in _UNSEEN.sub("", text).splitlines())
    return _EMPTY_LINES.sub("\n\n", _BLANKS.sub(" " * 20, lines))


def _plain_text(name: str, body: bytes) -> str:
    beginning = body[:_BEGINNING]
    if beginning.startswith(_OLD_WORD):
        raise UnreadableFile("unsupported_file", "It is an Office document of the old format: save it as DOCX or PDF.")
    # Zero bytes are in every binary file, and in text only where it is UTF-16.
    if b"\x00" in beginning and not beginning.startswith(_UTF_16):
        raise UnreadableFile("unsupported_file", "It is not text, nor a PDF, DOCX or HTML file.")
    start = beginning.lstrip(b"\xef\xbb\xbf \t\r\n")[:20].lower()
    is_page = name.lower().endswith((".html", ".htm", ".xhtml")) or start.startswith((b"<!doctype html", b"<html"))
    # The byte order mark would be a character of the first line.
    text = decoded(body, "utf-16" if beginning.startswith(_UTF_16) else None, is_html=is_page).removeprefix("\ufeff")
    if not is_page:
        return text
    from resiliparse.parse.html import HTMLTree

    tree = HTMLTree.parse(text)
    title = (tree.title or "").strip()
    return f"{title}\n\n{said_by(tree)}" if title else said_by(tree)


def _pdf_texts(body: bytes) -> Iterator[str]:
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        reader = PdfReader(io.BytesIO(body))
        # Many PDFs are encrypted with an empty password, which only forbids printing.
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableFile("invalid_file", "The PDF can only be read with a password.")
        for page in islice(reader.pages, MAX_PAGES):
            yield f"{page.extract_text()}\n\n"
    # Of the parser's own errors, and of Python's where a damaged file leads it astray.
    except (PyPdfError, RecursionError, ValueError, KeyError, TypeError, AttributeError, IndexError) as problem:
        raise UnreadableFile("invalid_file", "The PDF is damaged.") from problem


def _docx_texts(body: bytes) -> Iterator[str]:
    _check_zip(body)
    from docx import Document
    from docx.opc.exceptions import OpcError
    from docx.table import Table
    from lxml.etree import LxmlError

    try:
        for block in Document(io.BytesIO(body)).iter_inner_content():
            yield from _table_lines(block) if isinstance(block, Table) else [f"{block.text}\n"]
    except (OpcError, LxmlError, zipfile.BadZipFile, KeyError, ValueError, RecursionError) as problem:
        raise UnreadableFile("invalid_file", "The DOCX file is damaged.") from problem


def _check_zip(body: bytes) -> None:
    """Bound what a DOCX unpacks to, before it is: a zip of 40 KB can hold gigabytes."""
    try:
        parts = zipfile.ZipFile(io.BytesIO(body)).infolist()
    except (zipfile.BadZipFile, ValueError, OSError) as problem:
        raise UnreadableFile("invalid_file", "It is a damaged archive.") from problem
    # Also an ODT or a JAR is a zip.
    if _DOCX_TEXT not in [part.filename for part in parts]:
        raise UnreadableFile("unsupported_file", "It is an archive, and not a DOCX file.")
    xml = sum(part.file_size for part in parts if part.filename.endswith((".xml", ".rels")))
    # Sizes as the archive's own directory says them: nothing is unpacked for this.
    if len(parts) > MAX_PARTS or xml > MAX_UNPACKED_XML or sum(part.file_size for part in parts) > MAX_UNPACKED:
        raise UnreadableFile("invalid_file", "The DOCX file unpacks to more than this server reads.")


def _table_lines(table: "Table") -> Iterator[str]:
    for row in table.rows:
        yield " | ".join(cell.text.replace("\n", " ") for cell in row.cells) + "\n"
    yield "\n"


def _bounded(texts: Iterator[str]) -> str:
    parts, length = [], 0
    for text in texts:
        length += len(text)
        # While it grows: a PDF of a megabyte may have gigabytes of text.
        if length > MAX_TEXT:
            raise _too_long()
        parts.append(text)
    return "".join(parts)


def _too_long() -> UnreadableFile:
    return UnreadableFile("invalid_file", f"Its text is longer than {MAX_TEXT:,} characters: cut it into several.")


def answer(header: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Return the chunks of a file, or its text, or why there is none, as JSON."""
    try:
        if "max_text" in header:
            return {"text": text_of(header["name"], body)[: header["max_text"]]}
        chunking = Chunking(header["chunk_size"], header["chunk_overlap"])
        most = header["max_chunks"]
        # One more than allowed, which is how too many are known.
        chunks = list(islice(chunks_of(text_of(header["name"], body), chunking), most + 1))
    except UnreadableFile as problem:
        return {"code": problem.code, "message": str(problem)}
    except MemoryError:
        return {"code": "invalid_file", "message": "It takes more memory to read than this server gives."}
    except Exception:  # noqa: BLE001 - whatever a parser raises is about the file
        return {"code": "invalid_file", "message": "It cannot be read."}
    if len(chunks) > most:
        return {"code": "invalid_file", "message": f"It has more than {most:,} chunks: cut it into several files."}
    if not chunks:
        return {"code": "invalid_file", "message": "There is no text in it."}
    return {"chunks": chunks}


if __name__ == "__main__":
    serve(answer, cpu_seconds=CPU_SECONDS, memory=MEMORY_BYTES)
