"""Forms with files are read in one way, wherever they go."""

from typing import Any

import httpx
import pytest

from tests.kit.clients import http_client, read_error_answer
from tests.kit.inprocess import Server

MANIFEST = b"---\nname: %s\ndescription: A skill.\n---\n"


def part(name: str, content: bytes, filename: bytes | None = None) -> bytes:
    """Return a part of a form, with its boundary."""
    file = b"" if filename is None else b'; filename="' + filename + b'"'
    return (
        b'--XX\r\nContent-Disposition: form-data; name="'
        + name.encode()
        + b'"'
        + file
        + b"\r\n\r\n"
        + content
        + b"\r\n"
    )


async def send(http: httpx.AsyncClient, path: str, *parts: bytes) -> httpx.Response:
    """Send a form."""
    headers = {"content-type": "multipart/form-data; boundary=XX"}
    return await http.post(path, content=b"".join(parts) + b"--XX--\r\n", headers=headers)


async def upload(http: httpx.AsyncClient) -> str:
    """Begin an upload in parts; return its path."""
    fields = {"bytes": 4, "filename": "a\u202f報告\u202e.txt", "mime_type": "text/plain", "purpose": "user_data"}
    begun: Any = (await http.post("/uploads", json=fields)).json()
    assert begun["filename"] == "a\u202f報告.txt"
    return f"/uploads/{begun['id']}/parts"


@pytest.mark.parametrize("folder", ["café".encode("latin-1"), "報告".encode("cp932"), "報告".encode()])
async def test_every_upload_takes_any_name(demo_server: Server, folder: bytes) -> None:
    async with http_client(demo_server) as http:
        name = folder + b".txt"
        made = await send(http, "/files", part("purpose", b"user_data"), part("file", b"text", name))
        assert made.status_code == 200, made.text
        kept = made.json()["filename"]
        assert kept in ("café.txt", "報告.txt")
        answer = await http.get(f"/files/{made.json()['id']}/content")
        assert answer.headers["content-disposition"].startswith("attachment; filename*=utf-8''")
        assert (await send(http, await upload(http), part("data", b"text", name))).status_code == 200
        files = (
            part("files[]", MANIFEST % b"names", folder + b"/SKILL.md"),
            part("files[]", b"x", folder + b"/" + name),
        )
        skill = await send(http, "/skills", *files)
        assert skill.status_code == 200, skill.text
        bundle = await http.get(f"/skills/{skill.json()['id']}/content")
        assert f"names/{kept}".encode() in bundle.content
        await http.delete(f"/skills/{skill.json()['id']}")


async def test_every_form_says_what_it_does_not_take(demo_server: Server) -> None:
    skill = part("files", MANIFEST % b"twice", b"twice/SKILL.md")
    async with http_client(demo_server) as http:
        parts = await upload(http)
        for path, param, sent in (
            ("/files", "file", (part("purpose", b"user_data"), part("file", b"1", b"a"), part("file", b"2", b"b"))),
            ("/files", "purpose", (part("purpose", b"vision"), part("purpose", b"evals"), part("file", b"1", b"a"))),
            (parts, "data", (part("data", b"1", b"a"), part("data", b"2", b"b"))),
            ("/skills", "default", (part("default", b"true"), part("default", b"false"), skill)),
        ):
            message = read_error_answer(await send(http, path, *sent), status=400, code="invalid_value", param=param)
            assert "more than once" in message
        bare = await send(http, "/files", part("purpose", b"user_data"), part("file", b"text"))
        assert "has no file name" in read_error_answer(
            bare, status=400, code="missing_required_parameter", param="file"
        )
        strange = (part("mood[]", b"good"), part("mood[]", b"fine"), part("other", b"x", b"b.txt"))
        for path, wanted in (
            ("/files", (part("purpose", b"user_data"), part("file", b"1", b"a"))),
            (parts, (part("data", b"text", b"a"),)),
            ("/skills", (skill,)),
        ):
            answer = await send(http, path, *strange, *wanted)
            assert answer.status_code == 200, answer.text
            assert answer.headers["respsite-ignored"] == "mood[], other"
        slip = await send(http, "/files", part("purpos", b"user_data"), part("file", b"1", b"a"))
        assert "'purpose'" in read_error_answer(slip, status=400, code="unknown_parameter", param="purpos")
