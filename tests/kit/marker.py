"""A text that is looked for wherever a server may have left it: as it is, encoded, compressed, or as tokens."""

import base64
import gzip
import itertools
import json
import os
import re
import secrets
import sqlite3
import zlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from io import FileIO
from pathlib import Path

import psycopg
import redis

from engine.formats.harmony.encoding import encode_harmony

PAGE = os.sysconf("SC_PAGE_SIZE")  # bytes
_EMPTY = bytes(PAGE)
MAX_OPENED = 1 << 20  # bytes of a compressed text that are looked at
_COMPRESSED = re.compile(rb"x[\x01\x5e\x9c\xda]|\x1f\x8b\x08")  # how zlib and gzip begin


@dataclass(frozen=True)
class Marker:
    """A word that nobody else has."""

    word: str = field(default_factory=lambda: f"zq{secrets.token_hex(10)}xv")

    @cached_property
    def forms(self) -> Mapping[str, bytes]:
        """What it may be written as, by the name of the form."""
        plain = self.word.encode()
        forms = {
            "plain": plain,
            "upper case": plain.upper(),
            "reversed": plain[::-1],
            "utf-16-le": self.word.encode("utf-16-le"),
            "utf-16-be": self.word.encode("utf-16-be"),
            "utf-32": self.word.encode("utf-32-le"),
            "hex": plain.hex().encode(),
            "HEX": plain.hex().upper().encode(),
            "hex of utf-16": self.word.encode("utf-16-le").hex().encode(),
            "JSON": "".join(f"\\u{ord(each):04x}" for each in self.word).encode(),
            "percent": "".join(f"%{ord(each):02x}" for each in self.word).encode(),
        }
        for before in range(3):
            # Only those characters that do not depend on what stands beside it.
            whole = base64.b64encode(b"\0" * before + plain)
            forms[f"base64 at {before}"] = whole[4 if before else 0 : (before + len(plain)) // 3 * 4]
        for name, text in (("tokens", self.word), ("tokens behind a space", f" {self.word}")):
            # Its inner ones: the first and the last depend on what stands beside it.
            tokens = list(encode_harmony(text))[2:-2]
            assert len(tokens) > 4, "so few may be anything's"
            forms |= {
                f"{name}, packed": array("I", tokens).tobytes(),
                f"{name}, packed as hex": array("I", tokens).tobytes().hex().encode(),
                f"{name}, packed in 64 bits": array("Q", tokens).tobytes(),
                f"{name}, as numbers": ",".join(map(str, tokens)).encode(),
                f"{name}, as spaced numbers": ", ".join(map(str, tokens)).encode(),
            }
        return forms

    def forms_in(self, data: bytes, *, opens: bool = True) -> set[str]:
        """Return the forms in which it is in some data; `opens`: also in what is compressed there."""
        found = {name for name, form in self.forms.items() if form in data}
        if opens:
            for content in _opened(data):
                found |= {f"compressed, {name}" for name in self.forms_in(content, opens=False)}
        return found


def found_in(data: bytes, markers: Mapping[str, Marker], *, opens: bool = True) -> set[str]:
    """Return the forms of several markers in some data, each as "name, form"; what is compressed is opened once."""
    contents = itertools.chain([("", data)], (("compressed, ", content) for content in _opened(data) if opens))
    return {
        f"{name}, {before}{form}"
        for before, content in contents
        for name, marker in markers.items()
        for form in marker.forms_in(content, opens=False)
    }


def _opened(data: bytes) -> Iterator[bytes]:
    view = memoryview(data)
    for each in _COMPRESSED.finditer(data):
        opening = zlib.decompressobj(wbits=47)  # of both kinds
        with suppress(zlib.error):
            content = opening.decompress(view[each.start() : each.start() + MAX_OPENED], MAX_OPENED)
            if content:
                yield content


# Where it is looked for: the name of a place, and what is there.
Places = Iterator[tuple[str, bytes]]


def in_files(name: str, *folders: Path, without: str = "", since: float = 0.0) -> Places:
    """Yield the files below folders; `without` those of a name, and those that were not written `since` a Unix time."""
    for folder in folders:
        for file in [folder] if folder.is_file() else sorted(folder.rglob("*")):
            if file.is_file() and not file.is_symlink() and (not without or file.name != without):
                with suppress(FileNotFoundError):  # it went meanwhile
                    if file.stat().st_mtime >= since:
                        yield f"{name}: {file.relative_to(folder)}", file.read_bytes()


def in_sqlite(file: Path) -> Places:
    """Yield each table of a database, and the virtual ones' own."""
    with closing(sqlite3.connect(file)) as database:
        database.text_factory = bytes
        tables = [row[0].decode() for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            rows = database.execute(f'SELECT * FROM "{table}"')
            parts = (each if isinstance(each, bytes) else str(each).encode() for row in rows for each in row)
            yield f"database: {table}", b"\0".join(parts)


def in_postgres(url: str) -> Places:
    """Yield each table of a database."""
    with psycopg.connect(url) as database:
        database.execute("CHECKPOINT")
        listed = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        for (table,) in database.execute(listed).fetchall():
            rows = database.execute(f'SELECT * FROM "{table}"'.encode()).fetchall()
            parts = (
                bytes(each) if isinstance(each, bytes | memoryview) else _text(each) for row in rows for each in row
            )
            yield f"database: {table}", b"\0".join(parts)


def _text(value: object) -> bytes:
    return (json.dumps(value) if isinstance(value, dict | list) else str(value)).encode()


def in_redis(url: str) -> Places:
    """Yield each key with what it has."""
    with closing(redis.Redis.from_url(url)) as client:
        for key in client.keys("*"):  # type: ignore[union-attr]
            read = {
                b"string": lambda key=key: [client.get(key)],
                b"list": lambda key=key: client.lrange(key, 0, -1),
                b"set": lambda key=key: client.smembers(key),
                b"zset": lambda key=key: client.zrange(key, 0, -1),
                b"hash": lambda key=key: [part for pair in client.hgetall(key).items() for part in pair],
                b"stream": lambda key=key: [repr(client.xrange(key)).encode()],
            }[client.type(key)]  # type: ignore[index]
            yield f"Redis: {key!r}", b"\0".join([key, *(part or b"" for part in read())])


def in_memory(pid: int, *, forked: bool = False) -> Places:
    """Yield the memory of a process, region by region, without the pages that have nothing but zeros.

    Of one that is `forked`, only pages that it has written since: those that its parent has not as they are.
    """
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) if forked else pid
    with Path(f"/proc/{pid}/maps").open() as maps, _memory(pid) as memory, _memory(parent) as before:
        for line in maps:
            span, rights, *_ = line.split()
            begin, end = (int(part, 16) for part in span.split("-"))
            # What can be written may have come in since its start; files that are mapped to be read did not.
            if rights.startswith("rw"):
                data = _read(memory, begin, end)
                known = _read(before, begin, end) if forked else b""
                yield f"memory of {pid}", b"\0".join(_written(data, known))


def _memory(pid: int) -> FileIO:
    return FileIO(f"/proc/{pid}/mem")


def _read(memory: FileIO, begin: int, end: int) -> bytes:
    """Return a region, or nothing where it has gone or cannot be read."""
    with suppress(OSError, OverflowError, ValueError):
        memory.seek(begin)
        return memory.read(end - begin) or b""
    return b""


def _written(data: bytes, known: bytes) -> Iterator[bytes]:
    """Yield the runs of pages that are neither empty nor as in `known`, each with the pages beside it."""
    pages = range(0, len(data), PAGE)
    new = [page not in (_EMPTY, known[place : place + PAGE]) for place in pages if (page := data[place : place + PAGE])]
    # A text may begin or end in a page that is otherwise as it was.
    near = [any(new[max(number - 1, 0) : number + 2]) for number in range(len(new))]
    place = 0
    for is_near, run in itertools.groupby(near):
        length = sum(1 for _ in run) * PAGE
        if is_near:
            yield data[place : place + length]
        place += length


def gzipped(text: str) -> bytes:
    return gzip.compress(text.encode())
