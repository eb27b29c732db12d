"""The service with another model format: what stands above `engine.formats` knows none of them.

Every token is a byte, so prompts are compared as text.
"""

from collections.abc import AsyncIterator

import pytest

from engine.backends.scripted import with_logprobs
from engine.types import GenerationRequest, TokenChunk
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.items.compaction import REQUEST, summary_message
from responses_app.protocol.requests.requests import parse_create
from responses_app.runs.plan.plan import Origin
from tests.kit.fakes import TOOL_F, FakeEngine, Site
from tests.kit.laws import assert_laws
from tests.kit.oracle import validate_event
from tests.kit.plain_format import FORMAT, STOP

ANSWER = "Hello.\0"
THOUGHT = "(thought) Hm.\n"
CALL_F = f'{THOUGHT}f({{"a":1}})\0'
START = "Assistant: "
FRAME = "System: 2023-11-14 medium  []\n"
FRAME_F = "System: 2023-11-14 medium  ['f']\n"
TRIGGER: JsonObject = {"type": "compaction_trigger"}
SUMMARY = "They greet each other."
ORIGIN = Origin(transport="test", project="default")


class ByteEngine(FakeEngine):
    """Plays turns whose tokens are bytes."""

    ends = (STOP,)
    supports_logprobs = True

    def encode(self, said: str) -> list[int]:
        return list(said.encode())

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenChunk]:  # type: ignore[override]
        async for chunk in super().generate(request):
            asked = request.sampling.top_logprobs
            yield chunk if asked is None else with_logprobs(chunk, asked)

    @property
    def texts(self) -> list[str]:
        """The prompts of all generations so far, as text."""
        return [bytes(prompt).decode() for prompt in self.prompts]


class PlainSite(Site):
    """A service whose model reads and writes plain text."""

    engine: ByteEngine

    def __init__(self, *turns: str, max_model_len: int = 10_000) -> None:
        super().__init__(ByteEngine(turns or (ANSWER,), max_model_len=max_model_len), model_format=FORMAT)

    @property
    def texts(self) -> list[str]:
        """The prompts so far."""
        return self.engine.texts


def rendered(summary: str = SUMMARY) -> str:
    return bytes(summary_message(FORMAT, summary).tokens.tolist()).decode()


async def test_a_response_is_created() -> None:
    site = PlainSite(f"{THOUGHT}{ANSWER}")
    events = await (await site.begin(input="hi", instructions="Rhyme.")).to_the_end()
    assert_laws(events)
    for event in events:
        validate_event(event)
    thought, answer = events[-1]["response"]["output"]  # type: ignore[index]
    assert (thought["type"], thought["content"][0]["text"]) == ("reasoning", "Hm.")
    assert (answer["phase"], answer["content"][0]["text"]) == ("final_answer", "Hello.")
    assert site.texts == [f"{FRAME.replace('medium ', 'medium Rhyme.')}User: hi\n{START}"]
    assert site.engine.requests[0].sampling.stop_token_ids == (STOP,)
    usage = events[-1]["response"]["usage"]  # type: ignore[index]
    assert (usage["input_tokens"], usage["output_tokens"]) == (len(site.texts[0]), len(f"{THOUGHT}{ANSWER}"))


async def test_a_chain_goes_on_with_exactly_the_same_tokens_and_old_thoughts_are_dropped() -> None:
    site = PlainSite(ANSWER, f"{THOUGHT}{ANSWER}", ANSWER)
    response = await site.ask(input="one")
    response = await site.ask(input="two", previous_response_id=response["id"])
    await site.ask(input="three", previous_response_id=response["id"])
    one = f"{FRAME}User: one\n{START}"
    two = f"{one}Hello.\nUser: two\n{START}"
    assert site.texts == [one, two, f"{two}Hello.\nUser: three\n{START}"]


async def test_a_tool_loop_keeps_the_thoughts_and_the_calls() -> None:
    site = PlainSite(CALL_F, ANSWER)
    first = await site.ask(input="hi", tools=[TOOL_F])
    _, call = first["output"]  # type: ignore[misc]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "f", '{"a":1}')
    output: JsonObject = {"type": "function_call_output", "call_id": call["call_id"], "output": "18"}
    await site.ask(input=[output], tools=[TOOL_F], previous_response_id=first["id"])
    asked = f"{FRAME_F}User: hi\n{START}"
    assert site.texts == [asked, f'{asked}(thought) Hm.\n{START}f({{"a":1}})\nTool f: 18\n{START}']


async def test_a_client_that_replays_everything_gives_the_same_prompt() -> None:
    site = PlainSite(CALL_F, ANSWER)
    first = await site.ask(input="hi", tools=[TOOL_F])
    _, call = first["output"]  # type: ignore[misc]
    output: JsonObject = {"type": "function_call_output", "call_id": call["call_id"], "output": "18"}
    await site.ask(input=[output], tools=[TOOL_F], previous_response_id=first["id"])
    await site.ask(input=[{"role": "user", "content": "hi"}, *first["output"], output], tools=[TOOL_F])  # type: ignore[misc]
    assert site.texts[2] == site.texts[1]


async def test_items_that_were_not_sampled_here_are_rendered() -> None:
    site = PlainSite()
    history: list[JsonObject] = [
        {"role": "developer", "content": "Be kind."},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Two\nlines."}]},
        {"type": "function_call", "call_id": "c1", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "18"},
        {"type": "mcp_call", "id": "m", "server_label": "s", "name": "n", "arguments": "{}", "output": "ok"},
        {"type": "additional_tools", "tools": [{"type": "function", "name": "late"}]},
    ]
    await site.ask(input=history)
    assert site.texts[0].removeprefix(FRAME).splitlines() == [
        "Developer: Be kind.",
        "Assistant: (thought) Two",  # `splitlines` also divides at the format's own mark for a line
        "lines.",
        "Assistant: g({})",
        "Tool g: 18",
        "Assistant: s.n({})",
        "Tool s.n: ok",
        'Note: More functions: {"name":"late","description":null,"parameters":null}',
        START,
    ]


async def test_a_tool_that_does_not_exist_is_told() -> None:
    site = PlainSite("server.python(1)\0", ANSWER)
    response = await site.ask(input="hi", tools=[TOOL_F])
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]  # type: ignore[attr-defined]
    assert site.texts[1].endswith(f"Tool python: no such tool, only ['f']\n{START}")


async def test_a_compaction_begins_a_new_chain() -> None:
    site = PlainSite(ANSWER, f"{THOUGHT}{SUMMARY}\0", ANSWER)
    first = await site.ask(input="one")
    second = await site.ask(input=[TRIGGER], previous_response_id=first["id"])
    low = FRAME.replace("medium", "low")
    assert site.texts[1] == f"{low}User: one\n{START}Hello.\nUser: {REQUEST}\n{START}"
    assert site.engine.requests[1].sampling.stop_token_ids == (STOP,)
    await site.ask(input="two", previous_response_id=second["id"])
    assert site.texts[2] == f"{FRAME}{rendered()}User: two\n{START}"
    await site.ask(input=[*second["output"], {"role": "user", "content": "two"}])  # type: ignore[misc]
    assert site.texts[3] == site.texts[2]


async def test_a_long_chain_is_compacted_before_the_answer() -> None:
    site = PlainSite(ANSWER, f"{SUMMARY}\0", ANSWER)
    first = await site.ask(input="word " * 400)
    managed: JsonObject = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
    response = await site.ask(input="two", previous_response_id=first["id"], **managed)
    assert [item["type"] for item in response["output"]] == ["compaction", "message"]  # type: ignore[attr-defined]
    assert site.texts[2] == f"{FRAME}{rendered()}User: two\n{START}"


async def test_a_compact_request_gives_the_users_messages_back() -> None:
    site = PlainSite(ANSWER, f"{SUMMARY}\0")
    first = await site.ask(input="Two\nlines.")
    request = parse_create({"input": [TRIGGER], "previous_response_id": first["id"]})
    _, said = await site.service.compact(request, ORIGIN)
    assert [item["content"][0]["text"] for item in said] == ["Two\nlines."]  # type: ignore[index]


async def test_truncation_drops_the_oldest_messages() -> None:
    site = PlainSite(max_model_len=200)
    first = await site.ask(input="old " * 20)
    later: JsonObject = {"input": "new " * 20, "previous_response_id": first["id"]}
    with pytest.raises(ApiError, match="context"):
        await site.begin(**later)
    response = await site.ask(**later, truncation="auto")
    assert response["status"] == "completed"
    assert site.texts[1] == f"{FRAME}User: {'new ' * 20}\n{START}"


async def test_input_tokens_are_those_of_the_prompt() -> None:
    site = PlainSite()
    asked: JsonObject = {"input": "hi", "instructions": "Rhyme.", "tools": [TOOL_F]}
    counted = await site.service.count_input_tokens(parse_create(asked), ORIGIN)
    await site.ask(**asked)
    assert counted == len(site.engine.prompts[0])


async def test_log_probabilities_are_spelled_with_the_formats_bytes() -> None:
    response = await PlainSite("Hé\0").ask(input="hi", top_logprobs=1)
    logprobs = response["output"][0]["content"][0]["logprobs"]  # type: ignore[index]
    assert b"".join(bytes(entry["bytes"]) for entry in logprobs) == "Hé".encode()
    assert logprobs[0]["top_logprobs"] == [{"token": "H", "logprob": -0.25, "bytes": [72]}]
