"""File search with the demo engine's embeddings, on a real server."""

from openai import OpenAI

from tests.kit.fixtures import module_server
from tests.kit.sdk import sdk_of
from tests.kit.server import Server
from tests.kit.waiting import eventually

MODEL = "hashing-256"
MEANING = {"file_search_embedding_model": MODEL}
SHELL = "The shell of a turtle is made of bone."
SMALL = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}

server = module_server("meaning", **MEANING)


def filled(client: OpenAI, text: str = SHELL) -> str:
    """Make a vector store with a file; return its id."""
    store = client.vector_stores.create(name="animals")
    added = client.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("shell.txt", text.encode()), chunking_strategy=SMALL, poll_interval_ms=50
    )  # type: ignore[arg-type]
    assert added.status == "completed"
    return store.id


def found(client: OpenAI, store_id: str, query: str) -> list[str]:
    """Return the texts that a search finds."""
    return [hit.content[0].text for hit in client.vector_stores.search(store_id, query=query).data]


async def test_what_no_word_finds_is_found_by_its_vector(server: Server) -> None:
    with sdk_of(server) as client:
        store_id = filled(client)
        # No word of it is there; pieces of its words are, which is what this model goes by.
        await eventually(lambda: found(client, store_id, "turtleshell") == [SHELL])
        tool = {"type": "file_search", "vector_store_ids": [store_id]}
        weighed = {**tool, "ranking_options": {"hybrid_search": {"embedding_weight": 1, "text_weight": 0.5}}}
        answer = client.responses.with_raw_response.create(
            model="demo",
            input="Search the files for turtleshell",
            tools=[weighed],  # type: ignore[list-item]
        )
        assert "respsite-ignored" not in answer.headers
        assert SHELL in answer.parse().output_text
        client.vector_stores.delete(store_id)
