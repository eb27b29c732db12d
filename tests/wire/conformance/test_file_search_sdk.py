"""Vector stores and `file_search` through the SDK: files of all kinds go in, are found, cited, and gone."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import VectorStore

from tests.kit.fixtures import module_sdk, module_server
from tests.kit.sdk import Chat, refusal, sdk_of
from tests.kit.server import Server
from tests.unit.tools.documents.samples import docx_file, pdf_file

ASKED = "Please search the files for turtle shells."
SHELL = "The shell of a turtle is made of bone."
MS = 100  # between looks of the SDK


server = module_server("file-search", vector_store_max_files=6)


client = module_sdk()


@pytest.fixture(scope="module")
def store(client: OpenAI) -> VectorStore:
    """A store with a few files."""
    store = client.vector_stores.create(name="animals", metadata={"a": "b"})
    added = client.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("shell.txt", SHELL.encode()), attributes={"kind": "turtle"}, poll_interval_ms=MS
    )
    assert (added.status, added.last_error) == ("completed", None)
    batch = client.vector_stores.file_batches.upload_and_poll(
        store.id,
        files=[
            ("bird.pdf", pdf_file("A bird has feathers, and hatches from an egg with a shell.")),
            ("fish.docx", docx_file("A fish has scales.")),
            ("lies.txt", b"\x89PNG\r\n\x1a\n\x00"),
        ],
        poll_interval_ms=MS,
    )
    assert (batch.status, batch.file_counts.completed, batch.file_counts.failed) == ("completed", 2, 1)
    failed = list(client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id, filter="failed"))
    assert [each.last_error.code for each in failed if each.last_error] == ["unsupported_file"]
    return client.vector_stores.retrieve(store.id)


def tools_of(store: VectorStore, **more: object) -> Any:
    """Return the tool that searches it."""
    return [{"type": "file_search", "vector_store_ids": [store.id], **more}]


def assert_found(response: Any, *, results: bool = False) -> None:
    """Assert that a response searched, and cites the file it found."""
    assert response.status == "completed"
    (call,) = [item for item in response.output if item.type == "file_search_call"]
    assert (call.status, call.queries) == ("completed", ["turtle shells"])
    if results:
        assert (call.results[0].filename, call.results[0].text) == ("shell.txt", SHELL)
        assert 0 < call.results[0].score <= 1
        assert call.results[0].attributes == {"kind": "turtle"}
    else:
        assert call.results is None
    part = response.output[-1].content[0]
    assert part.text.endswith(SHELL)
    (cited,) = part.annotations
    assert (cited.type, cited.filename, cited.index) == ("file_citation", "shell.txt", len(part.text))


def test_what_is_in_a_store(client: OpenAI, store: VectorStore) -> None:
    assert (store.name, store.status, store.metadata) == ("animals", "completed", {"a": "b"})
    assert (store.file_counts.completed, store.file_counts.failed, store.file_counts.total) == (3, 1, 4)
    found = client.vector_stores.search(store.id, query="What is the shell of a turtle made of?").data
    assert [each.filename for each in found] == ["shell.txt", "bird.pdf"]
    assert found[0].content[0].text == SHELL
    filters: Any = {"type": "ne", "key": "kind", "value": "turtle"}
    assert [each.filename for each in client.vector_stores.search(store.id, query=["shell"], filters=filters)] == [
        "bird.pdf"
    ]
    strict = client.vector_stores.search(store.id, query="shell feathers", ranking_options={"score_threshold": 0.9})
    assert [each.filename for each in strict] == ["bird.pdf"]
    files = {each.id: each for each in client.vector_stores.files.list(store.id, limit=1)}
    assert len(files) == 4, "over several pages"
    content = client.vector_stores.files.content(found[0].file_id, vector_store_id=store.id)
    assert [each.text for each in content] == [SHELL]


@pytest.mark.each_database
def test_at_once_and_streamed(client: OpenAI, store: VectorStore) -> None:
    tools, include = tools_of(store), ["file_search_call.results"]
    assert_found(client.responses.create(model="demo", input=ASKED, tools=tools, store=False))
    response = client.responses.create(model="demo", input=ASKED, tools=tools, include=include)  # type: ignore[arg-type]
    assert_found(response, results=True)
    with client.responses.stream(model="demo", input=ASKED, tools=tools, previous_response_id=response.id) as stream:
        kinds = [event.type.removeprefix("response.") for event in stream]
        assert_found(stream.get_final_response())
    calls = [each for each in kinds if each.startswith("file_search_call")]
    assert calls == [f"file_search_call.{each}" for each in ("in_progress", "searching", "completed")]
    assert kinds.count("output_text.annotation.added") == 1


def test_in_the_background_and_over_the_websocket(client: OpenAI, store: VectorStore) -> None:
    response = client.responses.create(model="demo", input=ASKED, tools=tools_of(store), background=True)
    while response.status in ("queued", "in_progress"):
        response = client.responses.retrieve(response.id)
    assert_found(response)
    with client.responses.connect() as connection:
        assert_found(Chat(connection).ask(input=ASKED, tools=tools_of(store)))


def test_what_cannot_be_searched_is_said_before_anything_is_streamed(client: OpenAI, store: VectorStore) -> None:
    unknown: Any = [{"type": "file_search", "vector_store_ids": [f"vs_{'0' * 32}"]}]
    create = partial(client.responses.create, model="demo", input=ASKED)
    refusal(openai.NotFoundError, create, tools=unknown, stream=True, match="Vector store with id")
    for more in ({"max_num_results": 51}, {"filters": {"type": "eq", "key": "a"}}, {"vector_store_ids": []}):
        refusal(openai.BadRequestError, create, tools=tools_of(store, **more), match=r"tools\[0\]")
    add = partial(client.vector_stores.files.create, store.id, file_id="file-unknown")
    refusal(openai.NotFoundError, add, match="file-unknown")
    static = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 60}}
    refusal(openai.BadRequestError, add, chunking_strategy=static, match="half of")


@pytest.mark.each_database
def test_a_file_is_changed_taken_out_and_deleted(client: OpenAI) -> None:
    files = [client.files.create(file=(f"{n}.txt", b"a turtle"), purpose="assistants") for n in range(3)]
    store = client.vector_stores.create(
        file_ids=[file.id for file in files[:2]], expires_after={"anchor": "last_active_at", "days": 1}
    )
    assert store.expires_at is not None
    for file in files[:2]:
        polled = client.vector_stores.files.poll(file.id, vector_store_id=store.id, poll_interval_ms=MS)
        assert polled.status == "completed"
    changed = client.vector_stores.files.update(files[0].id, vector_store_id=store.id, attributes={"year": 2026})
    assert changed.attributes == {"year": 2026}
    assert len(client.vector_stores.search(store.id, query="turtle").data) == 2
    client.vector_stores.files.delete(files[0].id, vector_store_id=store.id)
    assert client.files.retrieve(files[0].id).id == files[0].id
    client.files.delete(files[1].id)
    assert client.vector_stores.search(store.id, query="turtle").data == []
    assert list(client.vector_stores.files.list(store.id)) == []
    updated = client.vector_stores.update(store.id, name="new", expires_after=None)
    assert (updated.name, updated.expires_at) == ("new", None)
    many = [client.files.create(file=("x.txt", b"x"), purpose="assistants").id for _ in range(7)]
    refusal(openai.RateLimitError, client.vector_stores.create, file_ids=many, match="VECTOR_STORE_MAX_FILES")
    client.vector_stores.delete(store.id)
    assert store.id not in [each.id for each in client.vector_stores.list()]
    refusal(openai.NotFoundError, client.vector_stores.retrieve, store.id)


CALLED = "<|channel|>commentary to=file_search.msearch <|constrain|>json<|message|>"
SCRIPT = [
    {"when": "Shells?", "say": f'{CALLED}{{"queries": ["turtle"]}}<|call|>'},
    {"when": "[0:0] shell.txt", "say": "<|channel|>final<|message|>Bone【0:0†shell.txt】.<|return|>"},
    {"when": "More?", "say": "<|channel|>final<|message|>Still bone【0:0†shell.txt】.<|return|>"},
]


def test_a_citation_holds_over_a_restart_and_files_are_read_by_the_next_process(folder: Path) -> None:
    previous, store_id = None, ""
    for asked in ("Shells?", "More?"):
        with Server(folder, script=SCRIPT) as server, sdk_of(server) as client:
            if not store_id:
                store_id = client.vector_stores.create(name="kept").id
                client.vector_stores.files.upload_and_poll(
                    vector_store_id=store_id, file=("shell.txt", SHELL.encode()), poll_interval_ms=MS
                )
            tools: Any = [{"type": "file_search", "vector_store_ids": [store_id]}]
            response = client.responses.create(
                model="scripted", input=asked, tools=tools, previous_response_id=previous
            )
            previous = response.id
            (cited,) = response.output[-1].content[0].annotations  # type: ignore[union-attr]
            assert (cited.type, cited.filename) == ("file_citation", "shell.txt")  # type: ignore[union-attr]


async def test_a_large_file_holds_nobody_up(server: Server, store: VectorStore) -> None:
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        words = " ".join(f"word{number} shell" for number in range(100_000)).encode()
        large = await client.vector_stores.create(name="large")
        reading = asyncio.create_task(
            client.vector_stores.files.upload_and_poll(
                vector_store_id=large.id, file=("large.txt", words), poll_interval_ms=MS
            )
        )
        answers = 0
        while not reading.done():
            answer = await client.responses.create(model="demo", input="Hello")
            assert answer.status == "completed"
            answers += 1
        assert (await reading).status == "completed"
        assert answers > 1
        await client.vector_stores.delete(large.id)
