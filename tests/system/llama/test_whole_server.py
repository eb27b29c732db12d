"""The whole server over a real llama-server, through OpenAI's SDK."""

import asyncio
from itertools import pairwise
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from engine.formats.harmony.encoding import decode_tokens
from tests.clients.codex.cli import Codex, config, installed
from tests.kit.laws import assert_laws
from tests.kit.oracle import validate_event
from tests.kit.pictures import data_url, picture
from tests.kit.sdk import MODEL, WEATHER, Chat, run_tools, sdk_of, server_sent
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.system.llama.conftest import front_of
from tests.system.llama.model import CALLS, CONTEXT, EMOJI, ENDLESS, LONG, LONG_WORDS, SHELL, SHORT, spelled
from tests.system.llama.server import SLOTS, LlamaServer

TURNS = 30  # of a conversation
PIXEL = data_url(picture())
PATCH = {"type": "grammar", "syntax": "lark", "definition": 'start: "patch"'}
GREEDY = {"temperature": 0}


def test_the_log_says_what_was_reached(front: Server, llama: LlamaServer) -> None:
    assert "the engine is ready: llama-server, " in front.output
    assert f"{CONTEXT} tokens of context, {SLOTS} at once at {llama.url}" in front.output


def test_a_stream(client: OpenAI) -> None:
    for cue, text in ((LONG, decode_tokens(LONG_WORDS)), (EMOJI, "A llama 🦙 and 喵 say 龘!")):
        create = client.responses.with_streaming_response.create
        with create(model=MODEL, input=f"say{spelled(cue)}", stream=True, **GREEDY) as streamed:
            events = server_sent(list(streamed.iter_lines()))
        for event in events:
            validate_event(event)
        assert_laws(events)
        deltas = [str(event["delta"]) for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == text


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
    print(f"{TURNS} turns: {computed_twice(responses)} tokens computed twice, of {sampled_of(responses)}")
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


def sampled_of(turns: list[Response]) -> int:
    """Return how many tokens the last prompt had."""
    assert turns[-1].usage is not None
    return turns[-1].usage.input_tokens


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
        stream = client.responses.create(model=MODEL, input=f"say{spelled(ENDLESS)}", stream=True, **GREEDY)
        next(event for event in stream if event.type == "response.output_text.delta")
        own_llama.kill()
        *_, last = stream
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert "Try again in" in last.response.error.message
        assert front.wait_until("/ready", 503).json()["engine"] == "the engine is away"
        with pytest.raises(openai.InternalServerError) as refused:
            client.responses.create(model=MODEL, input="hi")
        assert (refused.value.status_code, refused.value.code) == (503, "server_is_overloaded")
        own_llama.start()
        front.wait_until("/ready", 200)
        after = client.responses.create(
            model=MODEL, input=f"say{spelled(SHORT)} again", previous_response_id=before.id, **GREEDY
        )
        assert after.output_text == "Hello you"


@pytest.mark.parametrize("websockets", [True, False], ids=["websocket", "sse"])
async def test_codex_runs_a_command_and_answers(front: Server, tmp_path: Path, websockets: bool) -> None:
    codex = Codex(installed(), tmp_path, config=config(base_url=front.base_url, model=MODEL, websockets=websockets))
    turn = await codex.ask(f"Write a note, my{spelled(SHELL)}.")
    assert (turn.exit_code, turn.last_message) == (0, "Hello you"), turn
    (command,) = turn.items("command_execution")
    assert command["exit_code"] == 0
    assert (codex.work / "note.txt").read_text() == "say brief"
