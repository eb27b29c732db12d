"""A stream over HTTP begins with the engine's first word: what the engine refuses by then has a status of its own."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from tests.kit.clients import http_client, read_error_answer, server_sent
from tests.kit.fixtures import module_server
from tests.kit.inprocess import Server
from tests.kit.scripts import BEGIN, gate, main_script, release
from tests.kit.stored import stored_statuses
from tests.kit.waiting import eventually

REFUSALS = [
    ("[away]", 503, "server_is_overloaded"),
    ("[full]", 429, "rate_limit_exceeded"),
    ("[no]", 500, "server_error"),
]
LONG_MS = 60_000  # longer than a test takes: what would wait for so long does not end in time
SCRIPT: list[dict[str, Any]] = [
    {"when": "[full once]", "fault": "overloaded", "times": 1},
    {"when": "[full once]", "say": f"{BEGIN}So.<|return|>"},
]


# It waits for the first word as long as a busy machine needs, and generates one at a time.
server = module_server(
    "server",
    Server,
    script=lambda folder: [*SCRIPT, *main_script(folder)],
    model_name="m",
    stream_first_word_ms=LONG_MS,
    engine_max_running=1,
)


def asked(text: str, **fields: object) -> dict[str, object]:
    return {"input": text, "stream": True, **fields}


@pytest.mark.parametrize(("word", "status", "code"), REFUSALS)
@pytest.mark.parametrize("store", [True, False])
async def test_what_the_engine_refuses_at_once_is_an_error(
    server: Server, http: httpx.AsyncClient, word: str, status: int, code: str, store: bool
) -> None:
    before = set(stored_statuses(server))
    answer = await http.post("/responses", json=asked(word, store=store))
    read_error_answer(answer, status=status, code=code)
    assert ("retry-after" in answer.headers) == (status != 500)
    kept = {response: status for response, status in stored_statuses(server).items() if response not in before}
    assert list(kept.values()) == (["failed"] if store else [])


async def test_the_sdk_tries_it_again_by_itself(server: Server) -> None:
    async with AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=1) as client:
        events = [event async for event in await client.responses.create(model="m", input="[full once]", stream=True)]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
        with pytest.raises(openai.RateLimitError) as refused:
            await client.with_options(max_retries=0).responses.create(model="m", input="[full]", stream=True)
        assert refused.value.response.headers["retry-after"] == "1"


async def test_what_breaks_behind_the_first_word_fails_in_the_stream(http: httpx.AsyncClient) -> None:
    async with http.stream("POST", "/responses", json=asked("[break]")) as answer:
        assert answer.status_code == 200
        names = [name async for name, _ in server_sent(answer)]
    assert names[-2] == "response.failed"


async def test_nothing_is_waited_for_while_others_have_the_engine(server: Server, http: httpx.AsyncClient) -> None:
    async with http.stream("POST", "/responses", json=asked(gate("a0"))) as first:
        assert first.status_code == 200
        async with http.stream("POST", "/responses", json=asked("Hello")) as second:
            events = server_sent(second)
            assert [(await anext(events))[0] for _ in range(2)] == ["response.created", "response.queued"]
            release(server, "a0")
            assert [name async for name, _ in events][-2] == "response.completed"


async def test_a_client_that_leaves_before_the_first_word_ends_its_response(
    server: Server, http: httpx.AsyncClient
) -> None:
    before = set(stored_statuses(server))

    def statuses() -> set[str]:
        return {status for each, status in stored_statuses(server).items() if each not in before}

    asking = asyncio.create_task(http.post("/responses", json=asked("[silence]")))
    await eventually(lambda: statuses() == {"in_progress"})
    asking.cancel()
    await eventually(lambda: statuses() == {"cancelled"})


async def test_a_stream_that_is_picked_up_waits_for_nothing(http: httpx.AsyncClient, server: Server) -> None:
    before = set(stored_statuses(server))
    await http.post("/responses", json=asked("[no]"))
    (failed,) = set(stored_statuses(server)) - before
    async with http.stream("GET", f"/responses/{failed}?stream=true") as answer:
        assert answer.status_code == 200
        assert [name async for name, _ in server_sent(answer)][-2] == "response.failed"


async def test_it_may_be_left_out(folder: Path) -> None:
    with Server(folder, script=main_script(folder), stream_first_word_ms=0) as server:
        async with http_client(server) as http, http.stream("POST", "/responses", json=asked("[full]")) as answer:
            assert answer.status_code == 200
            assert [name async for name, _ in server_sent(answer)][-2] == "response.failed"
