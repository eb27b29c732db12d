"""Uploads that are broken, too large, or named to do harm; and what a project may keep."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.kit.clients import raw_connection, read_error_answer
from tests.kit.fixtures import module_server
from tests.kit.server import Server

BOUNDARY = b"the-boundary"
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
PURPOSE = b'Content-Disposition: form-data; name="purpose"\r\n\r\nuser_data'
FILE = b'Content-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\ntext'
MAX_BYTES = 300_000


server = module_server("files", file_max_bytes=MAX_BYTES, files_max_entries=3, files_max_bytes=2 * MAX_BYTES)


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    """A client, after which no file is left."""
    with httpx.Client(base_url=server.base_url, verify=False, timeout=30) as client:
        yield client
        for file in client.get("/files").json()["data"]:
            client.delete(f"/files/{file['id']}")


def form(*parts: bytes, end: bytes = b"--" + BOUNDARY + b"--\r\n") -> bytes:
    """Return a form of these parts, headers and all."""
    return b"".join(b"--" + BOUNDARY + b"\r\n" + part + b"\r\n" for part in parts) + end


def uploaded(client: httpx.Client, content: bytes = b"text", name: str = "a.txt") -> httpx.Response:
    """Upload a file in the usual way."""
    return client.post("/files", files={"file": (name, content)}, data={"purpose": "user_data"})


def named(client: httpx.Client, disposition: bytes) -> httpx.Response:
    """Upload a file whose part says this of its name."""
    part = b'Content-Disposition: form-data; name="file"; ' + disposition + b"\r\n\r\ntext"
    return client.post("/files", content=form(PURPOSE, part), headers=FORM)


NAMELESS = FILE.replace(b'; filename="a.txt"', b"")
MISSING, INVALID = "missing_required_parameter", "invalid_value"
BROKEN: dict[str, tuple[bytes, str | None, str | None]] = {
    "no file": (form(PURPOSE), "file", MISSING),
    "no purpose": (form(FILE), "purpose", MISSING),
    "empty": (form(), "file", MISSING),
    "no name": (form(PURPOSE, NAMELESS), "file", MISSING),
    "no end": (form(PURPOSE, FILE, end=b""), None, None),
    "half an end": (form(PURPOSE, FILE, end=b"--" + BOUNDARY), None, None),
    "nonsense": (b"nonsense", None, None),
    "base64": (form(PURPOSE, b"Content-Transfer-Encoding: base64\r\n" + FILE.replace(b"text", b"t?x")), None, None),
    "two files": (form(PURPOSE, FILE.replace(b"text", b"text" * 40_000), FILE), "file", INVALID),
    "two purposes": (form(PURPOSE, FILE, PURPOSE.replace(b"user_data", b"vision")), "purpose", INVALID),
    "file and field": (form(PURPOSE, FILE, NAMELESS), "file", INVALID),
    "purpose as a file": (form(PURPOSE.replace(b'"purpose"', b'"purpose"; filename="a"'), FILE), "purpose", INVALID),
    "fields": (form(*[PURPOSE.replace(b"purpose", b"x")] * 2000, FILE), None, None),
    "long field": (form(PURPOSE.replace(b"user_data", b"x" * 70_000), FILE), None, None),
    "long head": (form(PURPOSE, b"X: " + b"x" * 20_000 + b"\r\n" + FILE), None, None),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_form_that_is_broken(client: httpx.Client, case: str) -> None:
    body, param, code = BROKEN[case]
    answer = client.post("/files", content=body, headers=FORM)
    read_error_answer(answer, status=400, code=code, param=param)
    assert client.get("/files").json()["data"] == []


@pytest.mark.parametrize("boundary", ["", "; boundary=", "; boundary=" + "b" * 300, '; boundary="\\x00"'])
def test_a_form_without_a_boundary(client: httpx.Client, boundary: str) -> None:
    headers = {"content-type": f"multipart/form-data{boundary}"}
    read_error_answer(client.post("/files", content=form(PURPOSE, FILE), headers=headers), status=400, code=None)


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        (b'filename="../../etc/passwd"', "passwd"),
        (b'filename="C:\\\\temp\\\\a.txt"', "a.txt"),
        (b'filename="a\tb\x01\x7f.txt"', "ab.txt"),
        ('filename="Übung 漢字 \u202etxt.exe"'.encode(), "Übung 漢字 txt.exe"),
        (b"filename*=UTF-8''%E2%82%AC%0D%0AX-Evil%3A%201%22.txt", '€X-Evil: 1".txt'),
        (b'filename="' + b"n" * 600 + b'.txt"', "n" * 251 + ".txt"),
        (b'filename="' + b"n" * 10_000 + b'"', "n" * 255),
        ('filename="café.txt"'.encode("latin-1"), "café.txt"),
        ('filename="Größe – “neu”.txt"'.encode("cp1252"), "Größe – “neu”.txt"),
        ('filename="Bob’s and Ann’s.txt"'.encode("cp1252"), "Bob’s and Ann’s.txt"),
        ('filename="報告.txt"'.encode("cp932"), "報告.txt"),
        ('filename="表示機能"'.encode("cp932"), "表示機能"),
        ('filename="報告書'.encode()[:-1] + b'.txt"', "報告\ufffd.txt"),
        (b'filename="\xff\xfe.txt"', "ÿþ.txt"),
        (b"filename*=ISO-8859-1'en'caf%E9.txt", "café.txt"),
        (b"filename=\"x\"; filename*=utf-8''%E5%A0%B1%E5%91%8A.txt", "報告.txt"),
        (b"filename*=nonsense''a.txt", "a.txt"),
        (b"filename*=unicode_escape''%5Cud800.txt", "ud800.txt"),
        (b"filename=a.txt", "a.txt"),
        (b'filename="a\\"b\\\\c; name=x.txt"', "c; name=x.txt"),
        (b'filename="a &amp; b%22.txt"', "a &amp; b%22.txt"),
        ('filename="Shot at 3.00\u202fPM\u3000👩\u200d💻.png"'.encode(), "Shot at 3.00\u202fPM\u3000👩\u200d💻.png"),
        (b'filename=".."', "file"),
        (b'filename=""', "file"),
    ],
)
def test_a_name_is_kept_as_far_as_it_does_no_harm(client: httpx.Client, disposition: bytes, name: str) -> None:
    made = named(client, disposition)
    assert made.status_code == 200, made.text
    assert made.json()["filename"] == name
    answer = client.get(f"/files/{made.json()['id']}/content")
    assert answer.content == b"text"
    assert answer.headers["content-disposition"].startswith("attachment; filename")
    assert "x-evil" not in answer.headers


def test_a_form_in_chunks_is_taken(client: httpx.Client) -> None:
    body = form(PURPOSE, FILE)
    answer = client.post("/files", content=(body[at : at + 50] for at in range(0, len(body), 50)), headers=FORM)
    assert answer.json()["bytes"] == 4
    longer = form(PURPOSE, FILE.replace(b"text", b"x" * MAX_BYTES))
    chunks = (longer[at : at + 65536] for at in range(0, len(longer), 65536))
    assert client.post("/files", content=chunks, headers=FORM).json()["bytes"] == MAX_BYTES


def test_other_bodies_are_not_taken(client: httpx.Client) -> None:
    for length in (1, MAX_BYTES):
        answer = client.post("/files", json={"file": "x" * length, "purpose": "user_data"})
        message = read_error_answer(answer, status=415, code="unsupported_media_type")
        assert "multipart/form-data" in message


@pytest.mark.parametrize("excess", [1, 200_000])
def test_a_file_that_is_too_large(client: httpx.Client, excess: int) -> None:
    """The one by its own size, the other by that of the whole form already."""
    answer = uploaded(client, b"x" * (MAX_BYTES + excess))
    assert "FILE_MAX_BYTES" in read_error_answer(answer, status=413, code="request_too_large")
    chunks = (form(PURPOSE, FILE.replace(b"text", b"x" * (MAX_BYTES + excess))) for _ in range(1))
    answer = client.post("/files", content=chunks, headers=FORM)
    assert "FILE_MAX_BYTES" in read_error_answer(answer, status=413, code="request_too_large")
    assert client.get("/files").json()["data"] == []


def test_a_project_that_is_full(client: httpx.Client) -> None:
    uploaded(client, b"x" * MAX_BYTES)
    uploaded(client, b"x" * (MAX_BYTES - 1))
    answer = uploaded(client, b"xx")
    assert "FILES_MAX_BYTES" in read_error_answer(answer, status=400, code="files_full", param="file")
    uploaded(client, b"x")
    answer = uploaded(client, b"")
    assert "FILES_MAX_ENTRIES" in read_error_answer(answer, status=400, code="files_full", param="file")


def test_a_client_that_leaves_during_its_upload_leaves_nothing(server: Server, client: httpx.Client) -> None:
    head = f"Host: localhost\r\nContent-Type: {FORM['content-type']}\r\nContent-Length: 9000\r\n"
    with raw_connection(server.port) as raw:
        raw.sendall(f"POST /v1/files HTTP/1.1\r\n{head}\r\n".encode() + form(PURPOSE, FILE))
    assert client.get("/files").json()["data"] == []


def test_the_length_is_told_also_of_nothing(client: httpx.Client) -> None:
    for content in (b"", b"text"):
        made = uploaded(client, content).json()
        assert made["bytes"] == len(content)
        for method, body in (("GET", content), ("HEAD", b"")):
            answer = client.request(method, f"/files/{made['id']}/content")
            told = (answer.status_code, answer.content, answer.headers["content-length"])
            assert told == (200, body, str(len(content))), method


@pytest.mark.parametrize("file_id", ["file-" + "0" * 32, "file-%00", "x" * 2000, "%F0%9F%98%80", "..%2f.."])
def test_what_is_not_there(client: httpx.Client, file_id: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
        answer = client.request(method, f"/files/{file_id}{path}")
        assert answer.status_code == 404, answer.text
        assert json.loads(answer.content)["error"]["type"] == "invalid_request_error"
