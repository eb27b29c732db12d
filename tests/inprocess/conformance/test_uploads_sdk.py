"""`client.uploads` of OpenAI's Python SDK, as it is, against a real server."""

import hashlib
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.kit.sdk import refusal

KIB = 1024


def begun(client: OpenAI, size: int, **fields: Any) -> Any:
    """Begin an upload."""
    about = {"filename": "notes.txt", "mime_type": "text/plain", "purpose": "user_data", **fields}
    return client.uploads.create(bytes=size, **about)


def test_a_file_is_uploaded_in_chunks(client: OpenAI, tmp_path: Path) -> None:
    content = bytes(range(256)) * (5 * 4 * KIB) + b"the end"  # 5 MiB, in parts that are no multiples of a piece
    file = tmp_path / "large.bin"
    file.write_bytes(content)
    md5 = hashlib.md5(content).hexdigest()
    done: Any = client.uploads.upload_file_chunked(
        file=file, mime_type="text/plain", purpose="user_data", part_size=1_500_000, md5=md5
    )
    assert (done.status, done.bytes, done.filename, done.object) == ("completed", len(content), "large.bin", "upload")
    assert client.files.retrieve(done.file.id) == done.file
    assert (done.file.bytes, done.file.purpose, done.file.status) == (len(content), "user_data", "processed")
    assert client.files.content(done.file.id).read() == content
    assert done.file.id in [each.id for each in client.files.list()]
    client.files.delete(done.file.id)
    refusal(openai.NotFoundError, client.files.content, done.file.id)


@pytest.mark.each_database
def test_parts_stand_in_the_order_that_completes_the_upload(client: OpenAI) -> None:
    upload = begun(client, 6, expires_after={"anchor": "created_at", "seconds": 3600})
    assert (upload.status, upload.expires_at - upload.created_at, upload.file) == ("pending", 3600, None)
    first, unused, second = [client.uploads.parts.create(upload.id, data=data) for data in (b"def", b"x", b"abc")]
    assert (first.object, first.upload_id) == ("upload.part", upload.id)
    done = client.uploads.complete(upload.id, part_ids=[second.id, first.id])
    assert client.files.content(done.file.id).read() == b"abcdef"
    assert done.file.expires_at == done.file.created_at + 3600
    assert client.uploads.complete(upload.id, part_ids=[second.id, first.id]) == done  # whose answer was lost
    for again, fields in (
        (client.uploads.complete, {"part_ids": [first.id, second.id]}),
        (client.uploads.parts.create, {"data": b"more"}),
        (client.uploads.cancel, {}),
    ):
        closed = refusal(openai.BadRequestError, again, upload.id, match="is completed", **fields)
        assert (closed.code, closed.param) == ("upload_closed", "upload_id")
    refusal(openai.BadRequestError, client.uploads.complete, upload.id, part_ids=[unused.id], match="no part")
    client.files.delete(done.file.id)


def test_parts_that_do_not_make_the_file_complete_nothing(client: OpenAI) -> None:
    upload = begun(client, 4)
    part = client.uploads.parts.create(upload.id, data=b"abc")
    rest = client.uploads.parts.create(upload.id, data=b"d")
    for wrong, param in (
        ({"part_ids": [part.id]}, "part_ids"),
        ({"part_ids": []}, "part_ids"),
        ({"part_ids": [part.id, "part_x"]}, "part_ids[1]"),
        ({"part_ids": [part.id, part.id]}, "part_ids"),
        ({"part_ids": [part.id, rest.id], "md5": "0" * 32}, "md5"),
        ({"part_ids": [part.id, rest.id], "md5": "not a checksum"}, "md5"),
    ):
        assert refusal(openai.BadRequestError, client.uploads.complete, upload.id, **wrong).param == param
    assert client.uploads.cancel(upload.id).status == client.uploads.cancel(upload.id).status == "cancelled"
    parts = [part.id, rest.id]
    refusal(openai.BadRequestError, client.uploads.complete, upload.id, part_ids=parts, match="is cancelled")


def test_what_cannot_be_uploaded_says_why(client: OpenAI) -> None:
    for wrong, param in (
        ({"size": -1}, "bytes"),
        ({"size": 1, "purpose": "x"}, "purpose"),
        ({"size": 1, "filename": ""}, "filename"),
        ({"size": 1, "expires_after": {"anchor": "created_at", "seconds": 1}}, "expires_after.seconds"),
    ):
        assert refusal(openai.BadRequestError, begun, client, **wrong).param == param
    too_large = refusal(openai.APIStatusError, begun, client, 2**50)
    assert (too_large.status_code, too_large.param) == (413, "bytes")
    upload = begun(client, 1)
    add = client.uploads.parts.create
    refusal(openai.BadRequestError, add, upload.id, data=b"abc", match="2 times the 1 bytes")
    client.uploads.cancel(upload.id)
    for unknown in ("upload_x", "upload_" + "0" * 32):
        refusal(openai.NotFoundError, client.uploads.cancel, unknown, match="not found")
        refusal(openai.NotFoundError, client.uploads.complete, unknown, part_ids=[], match="not found")
        refusal(openai.NotFoundError, add, unknown, data=b"a", match="not found")


def test_a_name_has_no_path(client: OpenAI) -> None:
    upload = begun(client, 0, filename="../../etc/pass\nwd")
    done = client.uploads.complete(upload.id, part_ids=[])
    assert (done.filename, done.file.filename, done.file.bytes) == ("passwd", "passwd", 0)
    client.files.delete(done.file.id)
