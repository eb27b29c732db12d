"""The service with another model format: what stands above `engine.formats` knows none of them.

`tests/unit/formats/test_chat_template.py` shows the same of models with chat templates: loops, compactions, truncation.

Every token is a byte, so prompts are compared as text.
"""

from collections.abc import AsyncIterator

from engine.backends.scripted import with_logprobs
from engine.types import GenerationRequest, TokenChunk
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.compaction import summary_message
from responses_app.protocol.requests.requests import parse_create
from responses_app.runs.plan.plan import Origin
from tests.kit.fakes import FakeEngine, Site
from tests.kit.oracle import validate_event
from tests.kit.plain_format import FORMAT, STOP

ANSWER = "Hello.\0"
THOUGHT = "(thought) Hm.\n"
START = "Assistant: "
FRAME = "System: 2023-11-14 medium  []\n"
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
        return [bytes(prompt).decode() for prompt in self.prompts]


class PlainSite(Site):
    """A service whose model reads and writes plain text."""

    engine: ByteEngine

    def __init__(self, *turns: str, max_model_len: int = 10_000) -> None:
        super().__init__(ByteEngine(turns or (ANSWER,), max_model_len=max_model_len), model_format=FORMAT)

    @property
    def texts(self) -> list[str]:
        return self.engine.texts


def rendered(summary: str = SUMMARY) -> str:
    return bytes(summary_message(FORMAT, summary).tokens.tolist()).decode()


async def test_a_response_is_created() -> None:
    site = PlainSite(f"{THOUGHT}{ANSWER}")
    events = await site.events(instructions="Rhyme.")
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


async def test_log_probabilities_are_spelled_with_the_formats_bytes() -> None:
    response = await PlainSite("Hé\0").ask(input="hi", top_logprobs=1)
    logprobs = response["output"][0]["content"][0]["logprobs"]  # type: ignore[index]
    assert b"".join(bytes(entry["bytes"]) for entry in logprobs) == "Hé".encode()
    assert logprobs[0]["top_logprobs"] == [{"token": "H", "logprob": -0.25, "bytes": [72]}]
