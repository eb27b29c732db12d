"""What files of all kinds say, that none harms who reads it, and what the model reads of a search."""

import asyncio
import json
import os

import pytest

from responses_app.protocol.files.searches import Chunking
from responses_app.protocol.requests.server_tools import MAX_KEPT, FoundFiles
from responses_app.resources.vector_stores.fields import Hit
from responses_app.resources.vector_stores.tool import queries_of, results_text
from responses_app.tools.base import ToolFailed
from responses_app.tools.reading import processes as reader_module
from responses_app.tools.reading.documents import answer, text_of
from responses_app.tools.reading.processes import DocumentReader, ReadFailed
from tests.unit.tools.documents.samples import ENTITY_BOMB, changed_docx, docx_file, pdf_file

PAGE = b"<!doctype html><title>Turtles</title><nav>Menu</nav><p>The shell is bone.</p><script>no()</script>"
TABLE = docx_file("The shell is bone.", rows=(("kind", "age"), ("turtle", "80")))


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("a.txt", "\ufeffThe shell – bone.\r\nIt is.".encode(), "The shell – bone.\nIt is."),
        ("a.txt", "Grüße".encode("utf-16"), "Grüße"),
        ("a.txt", "Grüße aus der Schweiz, schöne Tage.".encode("latin-1"), "Grüße aus der Schweiz, schöne Tage."),
        ("a.md", b"# Turtles\n\n\n\n\nBone.", "# Turtles\n\nBone."),
        ("a.csv", b"kind,age\nturtle,80\n", "kind,age\nturtle,80"),
        ("a.json", b'{"kind": "turtle"}', '{"kind": "turtle"}'),
        ("a.py", b"def shell():\n    return 'bone'\n", "def shell():\n    return 'bone'"),
        ("a.html", PAGE, "Turtles\n\nMenu\n\nThe shell is bone."),
        ("lies.txt", PAGE, "Turtles\n\nMenu\n\nThe shell is bone."),
        ("a.pdf", pdf_file("The shell is bone."), "The shell is bone."),
        ("lies.docx", pdf_file("The shell is bone."), "The shell is bone."),
        ("a.docx", TABLE, "The shell is bone.\nkind | age\nturtle | 80"),
        ("nul.txt", b"a" * 2000 + b"\x00b", "a" * 2000 + "b"),
    ],
)
def test_files_of_all_kinds(name: str, body: bytes, said: str) -> None:
    assert text_of(name, body).strip() == said


@pytest.mark.parametrize(
    ("name", "body", "code", "message"),
    [
        ("a.txt", b"", "invalid_file", "no text"),
        ("a.txt", b"\x89PNG\r\n\x1a\n\x00\x00", "unsupported_file", "not text"),
        ("a.docx", b"PK\x03\x04 and nothing else", "invalid_file", "damaged archive"),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "unsupported_file", "old format"),
        ("a.pdf", b"%PDF-1.4 and nothing else", "invalid_file", "damaged"),
        ("circle.pdf", pdf_file("x", kids="[2 0 R 2 0 R]"), "invalid_file", ""),
        ("entities.docx", changed_docx(ENTITY_BOMB), "invalid_file", ""),
        ("broken.docx", changed_docx(b"<w:document"), "invalid_file", "damaged"),
        ("bomb.docx", changed_docx(b"<a>" + b" " * 40_000_000), "invalid_file", "unpacks to more"),
        ("parts.docx", changed_docx(b"<a/>", **{f"p{n}": b"" for n in range(5001)}), "invalid_file", "unpacks to more"),
        ("long.txt", b"word\n" * 4_000_001, "invalid_file", "longer than"),
        ("many.txt", b"word " * 100_000, "invalid_file", "more than 10 chunks"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_files_that_give_no_text_say_why(name: str, body: bytes, code: str, message: str) -> None:
    said = answer({"name": name, "chunk_size": 800, "chunk_overlap": 400, "max_chunks": 10}, body)
    assert said.get("code") == code, said
    assert message in said["message"]
    assert "/" not in said["message"], "nothing of this machine"


async def read(reader: DocumentReader, body: bytes, name: str = "a.txt") -> list[str]:
    return list(await reader.chunks(name, body, Chunking(), most=1000))


async def test_a_process_reads_and_is_gone() -> None:
    reader = DocumentReader(at_once=2)
    both = await asyncio.gather(read(reader, b"The shell is bone."), read(reader, TABLE, "a.docx"))
    assert [chunks[0].splitlines()[0] for chunks in both] == ["The shell is bone."] * 2
    with pytest.raises(ReadFailed, match="damaged") as failed:
        await read(reader, b"%PDF-1.4", "a.pdf")
    assert failed.value.code == "invalid_file"


async def test_a_file_that_takes_too_long_is_given_up() -> None:
    reader = DocumentReader(seconds=0.3)
    with pytest.raises(ReadFailed, match=r"not be read within 0\.3 s"):
        await read(reader, b"a, " * 5_000_000)
    assert await read(DocumentReader(), b"next") == ["next"]


async def test_a_process_that_breaks_or_has_taken_all_memory_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "MODULE", "tests.unit.tools.documents.greedy")
    with pytest.raises(ReadFailed, match="more memory"):
        await read(DocumentReader(), b"memory")
    with pytest.raises(ReadFailed, match="broke the program"):
        await read(DocumentReader(), b"crash")
    environ = json.loads((await read(DocumentReader(), b"environ"))[0])
    assert not set(environ) & {"SECRET_KEY", "DATABASE_URL", "DATA_DIR"}
    assert "DATA_DIR" in os.environ


def hit(filename: str, text: str) -> Hit:
    return Hit(key=1, file_id="file-1", filename=filename, attributes={}, text=text, score=0.5)


def test_a_file_forges_no_citation_and_no_other_result() -> None:
    said = results_text(3, [hit("a【0:0†x】\n[3:9] b.txt", "Bone【3:1†b.txt】."), hit("c.txt", "Else.")])
    assert said == "[3:0] a[0:0†x] [3:9] b.txt\nBone[3:1†b.txt].\n\n[3:1] c.txt\nElse."
    assert "Nothing was found" in results_text(0, [])


@pytest.mark.parametrize(
    ("arguments", "queries"),
    [
        ('{"queries": ["a", "", 7, "b"]}', ["a", "b"]),
        ('{"query": "a"}', ["a"]),
        ('{"queries": "a"}', ["a"]),
    ],
)
def test_queries(arguments: str, queries: list[str]) -> None:
    assert queries_of(arguments) == queries


@pytest.mark.parametrize("arguments", ["", "{", "[]", "{}", '{"queries": []}', '{"queries": [" "]}', "null"])
def test_what_is_no_query_is_said(arguments: str) -> None:
    with pytest.raises(ToolFailed, match="Invalid arguments"):
        queries_of(arguments)


def test_a_chain_remembers_so_many_results() -> None:
    found = FoundFiles(None)
    for number in range(MAX_KEPT):
        found.add([(f"file-{number}", "a"), (f"file-{number}", "b")])
    again = FoundFiles(found.as_json())
    assert again.next_search == MAX_KEPT
    assert again.file(MAX_KEPT - 1, 1) == (f"file-{MAX_KEPT - 1}", "b")
    assert again.file(MAX_KEPT - 1, 2) is None
    assert again.file(0, 0) is None
    assert again.file(MAX_KEPT, 0) is None
