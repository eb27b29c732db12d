"""Several models: a request reaches the one it names, a chain goes on with another, and none needs Harmony."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from engine.backends.scripted import with_logprobs
from engine.errors import EngineUnavailable
from engine.formats.harmony.encoding import END, START, encode_harmony
from engine.formats.harmony.format import HarmonyFormat
from engine.types import GenerationRequest, TokenChunk
from responses_app.observing.metrics import Metrics
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.items.compaction import summary_message
from responses_app.protocol.requests.requests import parse_create
from responses_app.protocol.tiers import QueueBounds
from responses_app.runs.plan.plan import Origin
from responses_app.runs.plan.served import ServedModel, ServedModels
from responses_app.runs.plan.turns import FairTurns
from tests.kit.fakes import FakeEngine, Reading, Site
from tests.kit.plain_format import FORMAT, STOP, PlainFormat
from tests.kit.waiting import eventually
from tests.unit.runs.readers import refused
from tests.unit.runs.upkeep import LEASE, LEFT, left_behind, looked_after, statuses


def model_of(name: str, engine: FakeEngine, *, aliases: Sequence[str] = ()) -> ServedModel:
    return ServedModel(
        name,
        engine,
        lambda: engine.info,
        created=0,
        format=HarmonyFormat(),
        meter=Metrics().model(name),
        turns=FairTurns(max_running=1),
        aliases=aliases,
    )


class Two:
    """A server with two models: `fake`, the default, and `small`, which is also called `mini`."""

    def __init__(self, **parts: object) -> None:
        self.small = FakeEngine(max_model_len=200)
        self.site = Site(more_models=[model_of("small", self.small, aliases=["mini"])], **parts)  # type: ignore[arg-type]

    def used(self) -> tuple[int, int]:
        """Return how many generations each has done."""
        return len(self.site.engine.requests), len(self.small.requests)

    async def begin(self, *, models: Sequence[str] = (), **fields: object) -> Reading:
        origin = Origin(transport="test", project="default", models=models)
        return Reading(self.site, await self.site.service.create(parse_create({"input": "hi", **fields}), origin))


@pytest.mark.parametrize(("name", "called"), [(None, "fake"), ("fake", "fake"), ("small", "small"), ("mini", "small")])
async def test_a_request_reaches_the_model_it_names(name: str | None, called: str) -> None:
    two = Two()
    response = await two.site.ask(input="hi", model=name)
    assert response["model"] == called, "an alias is told as what it stands for"
    assert two.used() == ((1, 0) if called == "fake" else (0, 1))


@pytest.mark.parametrize("may", ["small", "mini"])
async def test_a_key_for_a_model_opens_all_its_names_and_no_other_model(may: str) -> None:
    two = Two()
    for name in (None, "small", "mini"):
        await (await two.begin(models=[may], model=name)).to_the_end()
    assert two.used() == (0, 3)
    assert (await refused(two.begin(models=[may], model="fake"))).status == 403


async def test_a_key_for_no_model_that_is_served() -> None:
    for name, status in ((None, 403), ("fake", 403), ("gone", 404)):
        assert (await refused(Two().begin(models=["gone"], model=name))).status == status


async def test_a_chain_goes_on_with_another_model_from_the_very_tokens() -> None:
    two = Two()
    first = await two.site.ask(input="one", model="fake")
    second = await two.site.ask(input="two", model="mini", previous_response_id=first["id"])
    await two.site.ask(input="three", model="fake", previous_response_id=second["id"])
    (asked, third), (other,) = two.site.engine.prompts, two.small.prompts
    said = [*asked, *encode_harmony("<|channel|>final<|message|>Hello."), END]
    assert other[: len(said)] == said
    assert third[: len(other)] == other


async def test_a_chain_that_is_too_long_for_the_other_model() -> None:
    two = Two()
    first = await two.site.ask(input="long " * 300, model="fake")
    error = await two.site.refusal(input="two", model="small", previous_response_id=first["id"])
    assert error.code == "context_length_exceeded"
    assert "200" in error.message


async def test_one_that_has_not_started_is_a_503() -> None:
    model = model_of("small", FakeEngine())
    site = Site(more_models=[replace(model, info=lambda: None)])
    error = await site.refusal(input="hi", model="small")
    assert error.status == 503
    assert error.retry_after


async def test_each_has_turns_of_its_own() -> None:
    two, held = Two(turns=FairTurns(max_running=1, bounds=QueueBounds(1))), asyncio.Event()
    two.site.engine.turns = [[held, "<|channel|>final<|message|>Hello.<|return|>"]]
    first = await two.begin(model="fake")
    await asyncio.wait_for(two.site.engine.waits.wait(), 5)
    waits = await two.begin(model="fake")
    await (await two.begin(model="small")).to_the_end()
    assert waits.run.status.value == "queued"
    held.set()
    for each in (first, waits):
        await each.to_the_end()


async def test_a_takeover_goes_on_with_the_model_that_it_has_begun_with() -> None:
    """Also where the request named none, and another one is the default now."""
    two = Two(store=await left_behind())
    assert statuses(two.site.store) == [LEFT]
    models = two.site.service.models
    two.site.service.machines = replace(
        two.site.service.machines,
        models=ServedModels(reversed(list(models))),  # type: ignore[call-overload]
    )
    async with looked_after(two.site):
        await eventually(lambda: statuses(two.site.store) == ["completed"])
    assert two.used() == (1, 0)


async def test_what_waits_for_a_model_that_is_away_does_not_hold_up_the_others() -> None:
    two = Two(store=await left_behind(3))
    first, *_ = two.site.store._responses.values()
    first.of.response["model"] = "small"
    two.small.ill = EngineUnavailable("away")
    async with looked_after(two.site):
        await eventually(lambda: sorted(map(str, statuses(two.site.store))) == ["completed", "completed", LEFT])
        await asyncio.sleep(2 * LEASE)
        two.small.ill = None
        await eventually(lambda: statuses(two.site.store) == ["completed"] * 3)
    assert two.used() == (2, 1)


async def test_of_all_that_wait_for_a_model_that_is_away_one_asks_for_it() -> None:
    """They may be thousands, and a worker looks every second."""
    site, asked = Site(store=await left_behind(5)), []

    async def away() -> None:
        asked.append(1)
        raise EngineUnavailable("away")

    well, site.engine.health = site.engine.health, away  # type: ignore[method-assign]
    async with looked_after(site, ready=lambda: False) as upkeep:
        reclaimer = upkeep._reclaimer

        async def has_claimed_all() -> bool:
            await reclaimer.reclaim()
            return len(reclaimer._claimed) == 5

        await eventually(has_claimed_all)
        asked.clear()
        await reclaimer.reclaim()
        assert len(asked) == 1
        site.engine.health = well  # type: ignore[method-assign]
        await reclaimer.reclaim()
        await eventually(lambda: statuses(site.store) == ["completed"] * 5)


class OtherFormat(PlainFormat):
    """One whose messages can be told from Harmony's."""

    def wrote(self, first: int) -> bool:
        return first < START


async def test_a_chain_that_nobody_can_read_does_not_go_on_in_another_format() -> None:
    engine = FakeEngine()
    site = Site(more_models=[replace(model_of("other", engine), format=OtherFormat())])
    site.service.models.told = lambda _: None
    first = await site.ask(input="hi")
    with pytest.raises(ApiError, match="another format") as refused:
        await site.ask(input="go on", model="other", previous_response_id=first["id"])
    assert (refused.value.status, refused.value.param) == (400, "model")
    assert not engine.requests
    assert (await site.ask(input="go on", previous_response_id=first["id"]))["status"] == "completed"


ANSWER = "Hello.\0"
THOUGHT = "(thought) Hm.\n"
PLAIN_START = "Assistant: "
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


async def test_a_chain_goes_on_with_exactly_the_same_tokens_and_old_thoughts_are_dropped() -> None:
    site = PlainSite(ANSWER, f"{THOUGHT}{ANSWER}", ANSWER)
    response = await site.ask(input="one")
    response = await site.ask(input="two", previous_response_id=response["id"])
    await site.ask(input="three", previous_response_id=response["id"])
    one = f"{FRAME}User: one\n{PLAIN_START}"
    two = f"{one}Hello.\nUser: two\n{PLAIN_START}"
    assert site.texts == [one, two, f"{two}Hello.\nUser: three\n{PLAIN_START}"]


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
        PLAIN_START,
    ]


async def test_a_long_chain_is_compacted_before_the_answer() -> None:
    site = PlainSite(ANSWER, f"{SUMMARY}\0", ANSWER)
    first = await site.ask(input="word " * 400)
    managed: JsonObject = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
    response = await site.ask(input="two", previous_response_id=first["id"], **managed)
    assert [item["type"] for item in response["output"]] == ["compaction", "message"]  # type: ignore[attr-defined]
    assert site.texts[2] == f"{FRAME}{rendered()}User: two\n{PLAIN_START}"


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
