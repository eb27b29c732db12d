"""The whole server over a real llama-server, through OpenAI's SDK.

Only this finds what of a real llama-server's answers does not fit the whole server.
"""

import asyncio
from itertools import pairwise
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from engine.formats.harmony.encoding import decode_tokens
from tests.kit.pictures import data_url, picture
from tests.kit.sdk import MODEL, WEATHER, Chat, run_tools, sdk_of
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.system.engine_process import assert_away, assert_failed, begin, streamed
from tests.system.llama.conftest import front_of
from tests.system.llama.model import CALLS, CONTEXT, EMOJI, ENDLESS, LONG, LONG_WORDS, SHORT, spelled
from tests.system.llama.server import SLOTS, LlamaServer

TURNS = 30  # of a conversation
PIXEL = data_url(picture())
PATCH = {"type": "grammar", "syntax": "lark", "definition": 'start: "patch"'}
GREEDY = {"temperature": 0}


def test_the_log_says_what_was_reached(front: Server, llama: LlamaServer) -> None:
    assert "the engine is ready: llama-server, " in front.output
    assert f"{CONTEXT} tokens of context, {SLOTS} at once at {llama.url}" in front.output


@pytest.mark.parametrize(("cue", "text"), [(LONG, decode_tokens(LONG_WORDS)), (EMOJI, "A llama 🦙 and 喵 say 龘!")])
def test_a_stream(client: OpenAI, cue: int, text: str) -> None:
    assert "".join(streamed(client, f"say{spelled(cue)}", **GREEDY)) == text


def test_a_conversation_over_http_computes_no_token_twice(client: OpenAI) -> None:
    responses = [client.responses.create(model=MODEL, input=f"say{spelled(SHORT)}", **GREEDY)]
    for turn in range(1, TURNS):
        cue = (SHORT, EMOJI, CALLS)[turn % 3]
        last = responses[-1]
        input: object = run_tools(last) or f"say{spelled(cue)} in turn {turn}"
        if isinstance(input, list):
            input.append({"role": "user", "content": f"say{spelled(SHORT)} then"})
        responses.append(
            client.responses.create(
                model=MODEL,
                input=input,
                tools=[WEATHER],
                previous_response_id=last.id,
                **GREEDY,  # type: ignore[arg-type]
            )
        )
    assert responses[-1].usage is not None
    print(f"{TURNS} turns: {computed_twice(responses)} tokens computed twice, of {responses[-1].usage.input_tokens}")
    assert computed_twice(responses[1:]) == 0


def test_a_tool_loop_on_a_socket_computes_no_token_twice(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        chat = Chat(connection)
        turns = [chat.ask(f"the{spelled(CALLS)} please", tools=[WEATHER], **GREEDY)]
        (call,) = turns[0].output
        assert (call.type, call.arguments) == ("function_call", '{"city":"Paris"}')  # type: ignore[union-attr]
        results = [{**result, "output": f"now say{spelled(SHORT)}"} for result in run_tools(turns[0])]
        turns.append(chat.ask(results, tools=[WEATHER], **GREEDY))
    assert turns[1].output_text == "Hello you"
    assert computed_twice(turns) == 0


def computed_twice(turns: list[Response]) -> int:
    """Return how many tokens of the turns before were computed again. The last one of a turn is in no cache."""
    missed = 0
    for before, after in pairwise(turns):
        assert before.usage is not None
        assert after.usage is not None
        known = before.usage.total_tokens - 1
        missed += max(0, known - after.usage.input_tokens_details.cached_tokens)
    return missed


def test_what_needs_a_grammar_is_refused_and_tools_are_not(client: OpenAI) -> None:
    for fields in (
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}}},
        {"tools": [WEATHER], "tool_choice": "required"},
        {"tools": [{"type": "custom", "name": "apply_patch", "format": PATCH}]},
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model=MODEL, input="hi", **fields)  # type: ignore[call-overload]
        assert "cannot hold the model to a format or to a call" in refused.value.message
    answer = client.responses.create(
        model=MODEL, input=f"say{spelled(SHORT)}", tools=[{**WEATHER, "strict": True}], **GREEDY
    )
    assert answer.output_text == "Hello you"


def test_the_model_is_told_of_an_image_that_it_does_not_see(client: OpenAI) -> None:
    content = [
        {"type": "input_image", "image_url": PIXEL, "detail": "auto"},
        {"type": "input_text", "text": f"say{spelled(SHORT)}"},
    ]
    answer = client.responses.create(model=MODEL, input=[{"role": "user", "content": content}], **GREEDY)  # type: ignore[list-item]
    assert answer.output_text == "Hello you"


async def test_no_more_run_than_the_server_has_slots(front: Server, llama: LlamaServer) -> None:
    async with AsyncOpenAI(base_url=front.base_url, api_key="none", max_retries=0, timeout=120) as client:

        async def ask() -> str:
            return (await client.responses.create(model=MODEL, input=f"say{spelled(SHORT)}", **GREEDY)).output_text

        answers = await asyncio.gather(*(ask() for _ in range(5 * SLOTS)))
    assert set(answers) == {"Hello you"}


async def test_a_lost_reader_stops_the_generation(front: Server, llama: LlamaServer) -> None:
    client = sdk_of(front)
    with client, client.responses.create(model=MODEL, input=f"say{spelled(ENDLESS)}", stream=True, **GREEDY) as stream:
        next(event for event in stream if event.type == "response.output_text.delta")
        assert llama.running() == 1
    await eventually(lambda: llama.running() == 0)


def test_a_server_that_dies_and_comes_back(own_llama: LlamaServer, tmp_path: Path) -> None:
    own_llama.start()
    with front_of(own_llama, tmp_path / "front") as front, sdk_of(front) as client:
        before = client.responses.create(model=MODEL, input=f"say{spelled(SHORT)}", **GREEDY)
        stream = begin(client, f"say{spelled(ENDLESS)}", **GREEDY)
        own_llama.kill()
        assert_failed(stream)
        assert_away(front, client)
        own_llama.start()
        front.wait_until("/ready", 200)
        after = client.responses.create(
            model=MODEL, input=f"say{spelled(SHORT)} again", previous_response_id=before.id, **GREEDY
        )
        assert after.output_text == "Hello you"
