"""`client.files` of OpenAI's Python SDK, as it is, against a real server."""

import io
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.kit.sdk import refusal

MIB = 1024 * 1024


def kept(client: OpenAI, name: str = "notes.txt", content: bytes = b"Some notes.", **fields: Any) -> Any:
    """Upload a file."""
    return client.files.create(file=(name, content), **{"purpose": "user_data", **fields})


@pytest.mark.each_database
def test_upload_retrieve_download_delete(client: OpenAI) -> None:
    made = kept(client)
    assert (made.object, made.bytes, made.filename) == ("file", 11, "notes.txt")
    assert (made.purpose, made.status, made.expires_at) == ("user_data", "processed", None)
    assert made.id.startswith("file-")
    assert len(made.id) == len("file-") + 32
    assert client.files.retrieve(made.id) == made
    content = client.files.content(made.id)
    assert content.read() == b"Some notes."
    assert content.response.headers["content-disposition"] == 'attachment; filename="notes.txt"'
    assert content.response.headers["x-content-type-options"] == "nosniff"
    deleted = client.files.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "file", True)
    for again in (client.files.retrieve, client.files.content, client.files.delete):
        refusal(openai.NotFoundError, again, made.id, match="not found")


@pytest.mark.each_database
def test_a_file_of_many_pieces_comes_back_as_it_was(client: OpenAI) -> None:
    content = bytes(range(256)) * (17 * 4096) + b"the end"  # 17 MiB, more than a piece and than daphne keeps in memory
    made = client.files.create(file=("large.bin", io.BytesIO(content)), purpose="user_data")
    assert made.bytes == len(content)
    with client.files.with_streaming_response.content(made.id) as answer:
        assert answer.headers["content-length"] == str(len(content))
        assert b"".join(answer.iter_bytes(MIB)) == content
    client.files.delete(made.id)


def test_the_model_reads_a_file_of_a_message(client: OpenAI) -> None:
    file = kept(client, content=b"The soup is 4 euros.")
    parts: Any = [{"type": "input_file", "file_id": file.id}]
    asked: Any = {"model": "demo", "input": [{"role": "user", "content": parts}]}
    answer = client.responses.create(**asked)
    (item,) = client.responses.input_items.list(answer.id)
    assert item.content[0].to_dict()["file_id"] == file.id  # type: ignore[union-attr]
    said = "[file: notes.txt]\nThe soup is 4 euros.\n[end of the file: notes.txt]"
    same = client.responses.input_tokens.count(model="demo", input=said).input_tokens
    counted = client.responses.input_tokens.count(**asked).input_tokens
    assert counted == same == answer.usage.input_tokens  # type: ignore[union-attr]
    client.files.delete(file.id)
    assert client.responses.input_tokens.count(**asked).input_tokens != counted


@pytest.mark.each_database
def test_lists_go_from_page_to_page(client: OpenAI) -> None:
    purposes = ["vision", "evals", "vision"]
    made = [kept(client, purpose=purpose).id for purpose in purposes]
    assert [file.id for file in client.files.list()][:3] == made[::-1]
    assert [file.id for file in client.files.list(order="asc", limit=1) if file.id in made] == made
    assert [file.id for file in client.files.list(purpose="vision", limit=1)] == [made[2], made[0]]
    assert [file.id for file in client.files.list(after=made[0], order="asc")] == made[1:]
    for name, wrong in (("after", "file-nothing"), ("limit", 10_001), ("purpose", "x")):
        assert refusal(openai.BadRequestError, client.files.list, **{name: wrong}).param == name
    for file_id in made:
        client.files.delete(file_id)


def test_what_expires_says_when(client: OpenAI) -> None:
    made = kept(client, expires_after={"anchor": "created_at", "seconds": 3600})
    assert made.expires_at == made.created_at + 3600
    assert client.files.retrieve(made.id) == made
    batch = kept(client, purpose="batch", name="a.jsonl")
    assert batch.expires_at == batch.created_at + 30 * 24 * 3600
    for file in (made, batch):
        client.files.delete(file.id)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "nonsense"}, "purpose"),
        ({"expires_after": {"anchor": "last_active_at", "seconds": 3600}}, "expires_after.anchor"),
        ({"expires_after": {"anchor": "created_at", "seconds": 3599}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "created_at", "seconds": 2_592_001}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "created_at", "seconds": "00003600999"}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "created_at"}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": 3600}}, "expires_after.anchor"),
    ],
)
def test_what_an_upload_cannot_say(client: OpenAI, fields: dict[str, Any], param: str) -> None:
    assert refusal(openai.BadRequestError, kept, client, **fields).param == param
