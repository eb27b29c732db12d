"""The one door: requests become runs, kept before anybody hears of them, and chains go on with the very tokens."""

import asyncio
from collections.abc import Callable, Collection, Iterator

import pytest

from engine.errors import EngineUnavailable
from engine.formats.harmony import prompt
from engine.formats.harmony.encoding import END, decode_tokens, encode_harmony, encode_slices, longest_token
from engine.formats.harmony.prompt import generation_start, render_text, render_tool_output
from engine.types import FinishReason
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.requests import parse_create
from responses_app.runs.plan import planning
from responses_app.runs.plan.plan import Origin
from tests.kit.fakes import ANSWER, CALL_F, TOOL_F, FakeEngine, Reading, Site
from tests.kit.laws import assert_laws
from tests.kit.waiting import eventually
from tests.unit.runs.readers import HALF, Held, hanging, idle, refused


def user(text: str) -> list[int]:
    return list(render_text("user", text).tokens)


def without_start(prompt: list[int]) -> list[int]:
    start = list(generation_start())
    assert prompt[-len(start) :] == start
    return prompt[: -len(start)]


def _never_encoded(text: str) -> Iterator[list[int]]:
    assert len(text) < longest_token() * 100, "it was tokenised"
    return encode_slices(text)


class TestChains:
    async def test_a_tool_loop_goes_on_with_exactly_the_sampled_tokens(self) -> None:
        site = Site(FakeEngine([CALL_F, CALL_F, ANSWER]))
        previous, sampled = None, [*generation_start(), *encode_harmony(CALL_F)]
        response = await site.ask(input="hi", tools=[TOOL_F])
        for turn in (1, 2):
            call_id = response["output"][-1]["call_id"]
            previous = response["id"]
            output: JsonObject = {"type": "function_call_output", "call_id": call_id, "output": f"it is {turn}"}
            response = await site.ask(input=[output], tools=[TOOL_F], previous_response_id=previous)
            before = without_start(site.engine.prompts[turn - 1])
            told = list(render_tool_output("functions.f", f"it is {turn}").tokens)
            assert site.engine.prompts[turn] == [*before, *sampled, *told, *generation_start()]
        assert response["previous_response_id"] == previous

    async def test_instructions_and_tools_come_from_the_present_request(self, site: Site) -> None:
        first = await site.ask(input="one", instructions="Rhyme.", tools=[TOOL_F], reasoning={"effort": "high"})
        await site.ask(input="two", previous_response_id=first["id"])
        text = decode_tokens(site.engine.prompts[1])
        assert "Rhyme" not in text
        assert "namespace functions" not in text
        assert "Reasoning: medium" in text

    async def test_the_date_of_a_chain_stays(self, site: Site) -> None:
        first = await site.ask(input="one")
        site.service.now = lambda: 1_700_000_000.0 + 86_400 * 3
        await site.ask(input="two", previous_response_id=first["id"])
        await site.ask(input="alone")
        assert ["2023-11-14" in decode_tokens(prompt) for prompt in site.engine.prompts] == [True, True, False]

    async def test_forks_go_their_own_ways(self, site: Site) -> None:
        first = await site.ask(input="one")
        for text in ("left", "right"):
            await site.ask(input=text, previous_response_id=first["id"])
        base = without_start(site.engine.prompts[1])[: -len(user("left"))]
        assert site.engine.prompts[2] == [*base, *user("right"), *generation_start()]

    async def test_a_connection_remembers_what_the_store_does_not(self, site: Site) -> None:
        reading = await site.begin(input="one", store=False)
        await reading.to_the_end()
        link = reading.run.link
        request = parse_create({"input": "two", "store": False, "previous_response_id": link.response_id})
        reader = await site.service.create(
            request, Origin(transport="test", project="default"), recall={link.response_id: link}.get
        )
        events = await Reading(site, reader).to_the_end()
        assert events[-1]["response"]["status"] == "completed"
        assert (
            await site.refusal(input="x", previous_response_id=link.response_id)
        ).code == "previous_response_not_found"

    async def test_a_warm_up_generates_nothing_and_can_be_continued(self, site: Site) -> None:
        site.engine.supports_prefill = False
        reading = await site.begin(
            input=[{"role": "developer", "content": "Be brief."}], generate=False, tools=[TOOL_F]
        )
        events = await reading.to_the_end()
        assert [event["type"] for event in events] == ["response.created", "response.completed"]
        assert events[-1]["response"]["output"] == []
        assert site.engine.requests == []
        assert reading.run.link is not None
        response = await site.ask(input="hi", previous_response_id=reading.run.response_id, tools=[TOOL_F])
        assert response["status"] == "completed"
        begun = render_text("developer", "Be brief.").tokens
        assert site.engine.prompts[0][-len(user("hi")) - 2 - len(begun) :] == [*begun, *user("hi"), *generation_start()]


def output_of(response: JsonObject) -> JsonObject:
    """Return an output for the call that a response ends with."""
    call = response["output"][-1]  # type: ignore[index]
    return {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}


class TestReplayedItems:
    """Agents SDKs, and Codex after a reconnect, send everything again."""

    @staticmethod
    def replayed(first: JsonObject, change: Callable[[JsonObject], JsonObject] = lambda item: item) -> list[JsonObject]:
        items = [change(dict(item)) for item in first["output"]]  # type: ignore[union-attr,call-overload]
        return [{"role": "user", "content": "hi"}, *items]

    @pytest.mark.parametrize("without", ["", "content"], ids=["whole", "reasoning without its text"])
    async def test_items_with_their_ids_come_back_as_the_tokens_they_were(self, without: str) -> None:
        def strip(item: JsonObject) -> JsonObject:
            return {k: v for k, v in item.items() if k != without} if item["type"] == "reasoning" else item

        early = CALL_F.replace("<|channel|>commentary to=functions.f ", " to=functions.f<|channel|>commentary ")
        site = Site(FakeEngine([early, ANSWER]))
        first = await site.ask(input="hi", tools=[TOOL_F])
        await site.ask(input=[*self.replayed(first, strip), output_of(first)], tools=[TOOL_F])
        told = render_tool_output("functions.f", "42").tokens
        assert site.engine.prompts[1] == [*site.engine.prompts[0], *encode_harmony(early), *told, *generation_start()]

    async def test_changed_items_are_rendered_as_the_client_wrote_them(self) -> None:
        def edit(item: JsonObject) -> JsonObject:
            return {**item, "arguments": '{"a":2}'} if item["type"] == "function_call" else item

        site = Site(FakeEngine([CALL_F, ANSWER]))
        first = await site.ask(input="hi", tools=[TOOL_F])
        await site.ask(input=[*self.replayed(first, edit), output_of(first)], tools=[TOOL_F])
        text = decode_tokens(site.engine.prompts[1])
        assert '{"a":2}' in text
        assert '{"a":1}' not in text

    @pytest.mark.parametrize("project", ["default", "other"])
    async def test_items_of_another_project_are_rendered_from_their_texts(self, project: str) -> None:
        split = ["<|channel|>final<|message|>Hel", "lo<|return|>"]
        site = Site(FakeEngine([split, ANSWER]))
        tokens = [*encode_harmony(split[0]), *encode_harmony(split[1])]
        first = await site.ask(input="hi")
        await (await site.begin(project=project, input=self.replayed(first))).to_the_end()
        came_back = [*site.engine.prompts[0], *tokens[:-1], END]
        assert (site.engine.prompts[1][: len(came_back)] == came_back) is (project == "default")
        assert "Hello<|end|>" in decode_tokens(site.engine.prompts[1])


OUTPUT_OF_NOTHING = {"type": "function_call_output", "call_id": "call_9", "output": "42"}


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "status", "code", "param", "hint"),
        [
            ({"model": "gpt-9"}, 404, "model_not_found", "model", "fake"),
            ({"previous_response_id": "r"}, 400, "previous_response_not_found", "previous_response_id", "r"),
            ({"input": [OUTPUT_OF_NOTHING]}, 400, None, "input", "call_9"),
            ({"input": [{"type": "item_reference", "id": "msg_1"}]}, 400, None, "input[0].id", "msg_1"),
        ],
        ids=["model", "previous response", "output without its call", "reference"],
    )
    async def test_what_is_not_there_is_named(
        self, fields: JsonObject, status: int, code: str | None, param: str, hint: str
    ) -> None:
        error = await Site().refusal(**{"input": "hi", **fields})
        assert (error.status, error.param) == (status, param)
        assert code in (None, error.code)
        assert hint in error.message

    async def test_a_previous_response_that_still_runs(self) -> None:
        site = hanging()
        reading = await site.begin(input="hi")
        error = await site.refusal(input="hi", previous_response_id=reading.run.response_id)
        assert error.code == "previous_response_in_progress"
        error = await site.refusal(input="hi", project="other", previous_response_id=reading.run.response_id)
        assert error.code == "previous_response_not_found", "another project learns nothing"
        error = await Site(store=site.store).refusal(input="hi", previous_response_id=reading.run.response_id)
        assert error.code == "previous_response_in_progress", "another worker runs it"

    @pytest.mark.parametrize("end", [RuntimeError("bug"), FinishReason.ABORT])
    async def test_failed_and_cancelled_responses_cannot_be_continued(self, end: Exception | FinishReason) -> None:
        site = Site(FakeEngine([[HALF, end]]))
        first = await site.ask(input="hi")
        assert first["status"] in ("failed", "cancelled")
        assert (await site.refusal(input="hi", previous_response_id=first["id"])).code == "previous_response_not_found"

    async def test_a_store_that_is_away(self, site: Site) -> None:
        site.store.failure = StoreError("no route to /secret")
        error = await site.refusal(input="hi", previous_response_id="resp_1")
        assert (error.status, error.code, error.headers) == (503, "server_is_overloaded", {"retry-after": "2"})
        assert "secret" not in error.message

    async def test_an_engine_that_is_not_ready(self, site: Site) -> None:
        site.engine.ill = EngineUnavailable("loading /secret", retry_after=9)
        error = await site.refusal(input="hi")
        assert (error.status, error.code, error.headers) == (503, "server_is_overloaded", {"retry-after": "9"})
        assert "secret" not in error.message
        assert len(site.registry) == 0


class TestTruncation:
    async def test_a_prompt_over_the_context_is_refused_before_it_is_created(self) -> None:
        site = Site(FakeEngine(max_model_len=150))
        error = await site.refusal(input="word " * 200)
        assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "input")
        assert site.engine.requests == []
        assert len(site.registry) == 0

    async def test_auto_drops_the_oldest_messages(self) -> None:
        site = Site(FakeEngine(max_model_len=200))
        first = await site.ask(input="old " * 100)
        assert (
            await site.refusal(input="new " * 40, previous_response_id=first["id"])
        ).code == "context_length_exceeded"
        response = await site.ask(input="new " * 40, previous_response_id=first["id"], truncation="auto")
        text = decode_tokens(site.engine.prompts[1])
        assert response["status"] == "completed"
        assert response["truncation"] == "auto"
        assert "old" not in text
        assert text.count("new") == 40
        assert text.startswith("<|start|>system")

    async def test_auto_cannot_help_where_the_last_message_alone_is_too_long(self) -> None:
        site = Site(FakeEngine(max_model_len=200))
        error = await site.refusal(input="new " * 400, truncation="auto")
        assert error.code == "context_length_exceeded"
        assert "truncation" not in error.message
        assert "shorten the last message" in error.message.lower()

    async def test_what_cannot_fit_by_its_bytes_is_refused_before_it_is_tokenised(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(prompt, "encode_slices", _never_encoded)
        site = Site(FakeEngine(max_model_len=200))
        too_long = " " * (200 * longest_token())
        halves = [{"role": "user", "content": too_long[: len(too_long) // 2]}] * 2
        for fields in (
            {"input": too_long},
            {"input": halves},
            {"input": "hi", "instructions": too_long},
            {"input": "hi", "instructions": too_long, "truncation": "auto"},
            {"input": too_long, "truncation": "auto"},
        ):
            error = await site.refusal(**fields)
            assert (error.status, error.code) == (400, "context_length_exceeded")
            assert "at least 200" in error.message
            with pytest.raises(ApiError, match="at least 200"):
                await site.service.count_input_tokens(parse_create(fields), Origin(transport="json", project="p"))

    async def test_auto_drops_an_older_message_that_cannot_fit(self) -> None:
        site = Site(FakeEngine(max_model_len=200))
        history = [{"role": "user", "content": " " * (200 * longest_token())}, {"role": "user", "content": "new"}]
        response = await site.ask(input=history, truncation="auto")
        assert response["status"] == "completed"
        assert decode_tokens(site.engine.prompts[0]).count("<|start|>user") == 1

    async def test_what_was_truncated_is_still_part_of_the_chain(self) -> None:
        """A later request with a larger reserve, or another model, may read it again."""
        site = Site(FakeEngine(max_model_len=200))
        first = await site.ask(input="old " * 100)
        reading = await site.begin(input="new " * 40, previous_response_id=first["id"], truncation="auto")
        await reading.to_the_end()
        assert "old" in decode_tokens(reading.run.link.prompt_tokens())


async def test_long_inputs_are_rendered_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(FakeEngine(max_model_len=100_000))
    threads = []
    in_thread = site.service.threads.run

    async def counting(project: str, size: int, function: Callable[..., object], *arguments: object) -> object:
        threads.append(function)
        return await in_thread(project, size, function, *arguments)

    monkeypatch.setattr(site.service.threads, "run", counting)
    await site.ask(input="short")
    assert threads == []
    response = await site.ask(input="x" * (planning.LONG_INPUT + 1))
    assert response["status"] == "completed"
    assert len(threads) == 1


class TestAccepted:
    """A stored response is kept before anybody hears of it."""

    async def test_it_is_kept_before_its_first_event(self, site: Site) -> None:
        accepting = Held(site.store, "accept")

        async def begin() -> tuple[Reading, JsonObject | None]:
            reading = await site.begin(input="hi")
            return reading, await site.store.response("default", reading.run.response_id)

        beginning = asyncio.create_task(begin())
        await accepting.waits.wait()
        assert not beginning.done(), "nobody can read it yet"
        assert site.registry.running == []
        accepting.go_on.set()
        reading, kept = await beginning
        assert kept["status"] == "in_progress"
        assert_laws(await reading.to_the_end())

    async def test_those_that_are_refused_while_the_store_is_away_wait_without_their_input(self, site: Site) -> None:
        """Else each of them would cost memory as its body did, until the store is back."""
        site.store.failure = StoreError("away")
        for _ in range(2):
            assert (await site.refusal(input="long " * 100)).status == 503
        assert [stored.input_items for stored in site.service.unsaved] == [(), ()]
        assert "long" not in str(list(site.service.unsaved))

    async def test_one_that_cannot_be_kept_is_refused(self, site: Site) -> None:
        site.store.failure = StoreError("no route to /secret")
        error = await site.refusal(input="hi")
        assert (error.status, error.code, error.headers) == (503, "server_is_overloaded", {"retry-after": "2"})
        assert "secret" not in error.message
        assert (len(site.registry), site.engine.requests) == (0, [])

    @pytest.mark.parametrize("stops", [True, False])
    async def test_a_client_that_leaves_meanwhile_has_cancelled_and_leaves_nothing_running(self, stops: bool) -> None:
        site = Site(FakeEngine([["<|channel|>final<|message|>It", asyncio.Event()]]))
        accepting = Held(site.store, "accept")
        beginning = asyncio.create_task(site.begin(input="hi"))
        await accepting.waits.wait()
        beginning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beginning
        stopping = asyncio.create_task(site.registry.aclose() if stops else asyncio.sleep(0))
        await asyncio.sleep(0)
        accepting.go_on.set()
        await stopping
        await eventually(lambda: bool(site.store.saved))
        await idle(site)
        assert [stored.response["status"] for stored in site.store.saved] == ["cancelled"]


class TestForgotten:
    """A connection remembers what it made; whether that can be continued is the store's word."""

    @staticmethod
    async def made(site: Site, **fields: object) -> ChainLink:
        reading = await site.begin(input="one", **fields)
        await reading.to_the_end()
        assert reading.run.link is not None
        return reading.run.link

    @staticmethod
    async def go_on(site: Site, link: ChainLink, **fields: object) -> JsonObject:
        request = parse_create({"input": "two", "previous_response_id": link.response_id, **fields})
        reader = await site.service.create(
            request, Origin(transport="test", project="default"), recall={link.response_id: link}.get
        )
        return (await Reading(site, reader).to_the_end())[-1]

    @pytest.mark.parametrize("store", [True, False])
    async def test_a_deleted_response_is_not_continued(self, store: bool, site: Site) -> None:
        link = await self.made(site)
        assert (await self.go_on(site, link, store=store))["type"] == "response.completed"
        await site.store.delete("default", link.response_id)
        error = await refused(self.go_on(site, link, store=store))
        assert (error.status, error.code) == (400, "previous_response_not_found")
        assert (len(site.registry), len(site.engine.requests)) == (0, 2)

    async def test_what_continued_a_deleted_response_goes_on(self, site: Site) -> None:
        first = await self.made(site)
        second = await site.begin(input="two", store=False, previous_response_id=first.response_id)
        await second.to_the_end()
        await site.responses.delete("default", first.response_id)
        assert second.run.link is not None
        assert (await self.go_on(site, second.run.link))["type"] == "response.completed"

    async def test_a_deletion_is_told_to_all_memories(self, site: Site) -> None:
        told: list[Collection[str]] = []
        site.forgetting.memories.add(told.append)
        link = await self.made(site)
        await site.responses.delete("default", link.response_id)
        site.forgetting.memories.discard(told.append)
        assert told == [{link.response_id}]
