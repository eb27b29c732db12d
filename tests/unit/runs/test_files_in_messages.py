"""`input_file` parts: the model reads what is in the file, or a note of why it cannot."""

import asyncio
import base64

import pytest

from engine.formats.harmony.encoding import decode_tokens
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.media import MAX_FILES
from responses_app.resources.files.fields import NewFile
from responses_app.resources.files.store import Files
from responses_app.runs.plan import reading
from responses_app.wiring.server_tools import document_text
from tests.kit.fakes import FakeEngine, Site
from tests.unit.runs.upkeep import kept as stored
from tests.unit.tools.documents.samples import docx_file, pdf_file

GONE = "[file omitted: there is no such file, or it has expired]"


def asked(*files: JsonObject) -> list[JsonObject]:
    parts = [{"type": "input_file", **file} for file in files]
    return [{"role": "user", "content": [{"type": "input_text", "text": "Read this."}, *parts]}]


def as_data(content: bytes, kind: str = "text/plain") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


async def keep(site: Site, content: bytes, filename: str = "notes.txt", *, project: str = "default") -> str:
    file_id = site.new_id("file-")
    file = NewFile(filename=filename, purpose="user_data", bytes=len(content))
    await site.files.create(project, file_id, file, [content])
    return file_id


async def read_by_model(site: Site, *files: JsonObject) -> str:
    """Return the prompt of a request with these files."""
    response = await site.ask(input=asked(*files))
    assert response["status"] == "completed"
    return decode_tokens(site.engine.prompts[-1])


@pytest.fixture
def site(files: Files) -> Site:
    """A site whose model reads a few thousand tokens."""
    return Site(read_document=document_text(), files=files)


async def test_a_file_of_text_is_shown(site: Site) -> None:
    file_id = await keep(site, "\ufeffThe café opens at 9.\n".encode())
    prompt = await read_by_model(site, {"file_id": file_id})
    assert "Read this.\n[file: notes.txt]\nThe café opens at 9.\n[end of the file: notes.txt]" in prompt
    (kept,) = [await site.store.input_items("default", each["id"]) or () for each in stored(site.store)]
    assert kept[0]["content"][1] == {"type": "input_file", "file_id": file_id}, "it is kept as it came"  # type: ignore[index]


@pytest.mark.parametrize("wrap", [as_data, lambda content: base64.b64encode(content).decode()])
async def test_a_file_that_the_request_carries_is_shown(site: Site, wrap: object) -> None:
    data = wrap(b"The code is 4711.")  # type: ignore[operator]
    prompt = await read_by_model(site, {"file_data": data, "filename": "a]\n[b.txt"})
    assert "[file: ab.txt]\nThe code is 4711.\n[end of the file: ab.txt]" in prompt


@pytest.mark.parametrize(
    ("name", "content"), [("a.pdf", pdf_file("Opens at nine.")), ("a.docx", docx_file("Opens at nine."))]
)
async def test_a_document_is_read_for_its_text(site: Site, name: str, content: bytes) -> None:
    prompt = await read_by_model(site, {"file_id": await keep(site, content, name)})
    assert "Opens at nine." in prompt
    assert f"[end of the file: {name}]" in prompt


@pytest.mark.parametrize(
    ("file", "note"),
    [
        ({"file_id": "file-" + "0" * 32}, GONE),
        (
            {"file_id": "file-\0", "filename": "a.txt"},
            "[file omitted: a.txt: there is no such file, or it has expired]",
        ),
        ({"file_data": "data:text/plain;base64,%%%"}, "[file omitted: its data is not base64]"),
        ({"file_data": as_data(b"\x89PNG\0\0")}, "[file omitted: file: it is not text, nor a PDF, DOCX or HTML file]"),
        ({"file_data": as_data(b"%PDF-1.7 broken")}, "[file omitted: file: the PDF is damaged]"),
        ({"file_data": as_data(b"PK\x03\x04")}, "[file omitted: file: it is a damaged archive]"),
        ({"file_url": "http://127.0.0.1/a.txt"}, "[file omitted: this model cannot read files]"),
    ],
)
async def test_a_file_that_cannot_be_shown_is_a_note(
    site: Site, caplog: pytest.LogCaptureFixture, file: JsonObject, note: str
) -> None:
    caplog.set_level("INFO", logger="respsite.runs")
    assert note in await read_by_model(site, file)
    assert "1 parts the model cannot read" in caplog.text


async def test_another_projects_file_is_not_there(site: Site) -> None:
    prompt = await read_by_model(site, {"file_id": await keep(site, b"secret", project="other")})
    assert GONE in prompt
    assert "secret" not in prompt


async def test_a_deleted_file_stays_what_was_read_in_its_chain(site: Site) -> None:
    file_id = await keep(site, b"The code is 4711.")
    first = await site.ask(input=asked({"file_id": file_id}))
    await site.files.delete("default", file_id)
    await site.ask(input="And now?", previous_response_id=first["id"])
    assert "The code is 4711." in decode_tokens(site.engine.prompts[-1])


async def test_a_document_is_read_once(site: Site, files: Files) -> None:
    read: list[str] = []

    async def reading(name: str, content: bytes) -> str:
        read.append(name)
        return "Its text."

    site = Site(read_document=reading, files=files)
    file_id = await keep(site, b"%PDF-", "a.pdf")
    for _ in range(2):
        assert "Its text." in await read_by_model(site, {"file_id": file_id})
    assert read == ["a.pdf"]


async def test_documents_that_take_too_long_are_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_SECONDS", 0.01)

    async def endless(name: str, content: bytes) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    site = Site(read_document=endless)
    file = {"file_data": as_data(b"%PDF-"), "filename": "a.pdf"}
    prompt = await read_by_model(site, file, file)
    assert prompt.count("[file omitted: a.pdf: the files of this request take too long to read]") == 2


async def test_too_many_files_and_too_long_ones_are_cut(monkeypatch: pytest.MonkeyPatch, files: Files) -> None:
    monkeypatch.setattr(reading, "MAX_TEXT", 1000)
    site = Site(FakeEngine(), files=files)
    long = await keep(site, b"x " * 1000)
    prompt = await read_by_model(site, {"file_id": long}, {"file_id": long})
    assert prompt.count("[the file is longer: its rest is left out]") == 1
    assert prompt.count("there are too many") == 1
    short = await keep(site, b"text")
    prompt = await read_by_model(site, *[{"file_id": short}] * (MAX_FILES + 2))
    assert (prompt.count("[end of the file"), prompt.count("there are too many")) == (MAX_FILES, 2)
