"""Public ids: those that clients choose, and those of whole turns."""

import asyncio

import pytest

from engine.errors import EngineOverloaded, GenerationFailed
from engine.formats.harmony.encoding import decode_tokens
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.events.dialects import OPENAI, Dialect, parse_dialect
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.requests import parse_create
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.runs.admission import goes_on
from responses_app.runs.plan.plan import Origin
from tests.kit.fakes import ANSWER, FakeEngine, FakeOthers, FakeStore, Reading, Site
from tests.unit.runs.readers import HALF, idle, refused

CODEX = parse_dialect("codex-turn")
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"


async def begin(site: Site, dialect: Dialect = CODEX, **fields: object) -> Reading:
    origin = Origin(transport="sse", project="default")
    request = parse_create({"input": "hi", **fields}, engine_fields=True)
    return Reading(site, await site.service.create(request, origin, dialect=dialect))


async def ask(site: Site, dialect: Dialect = CODEX, **fields: object) -> ResponseObject:
    events = await (await begin(site, dialect, **fields)).to_the_end()
    response: ResponseObject = events[-1]["response"]  # type: ignore[assignment]
    assert {event["response"]["id"] for event in events if "response" in event} == {response["id"]}  # type: ignore[index]
    return response


def output_of(response: ResponseObject, output: str = "18") -> list[JsonObject]:
    return [{"type": "function_call_output", "call_id": response["output"][-1]["call_id"], "output": output}]


def calling(*rest: list[object]) -> FakeEngine:
    """Return an engine that calls a function first, and then says the rest."""
    return FakeEngine([[CALL], *rest])


async def got(site: Site, name: str) -> object:
    """Return a response as a client gets it by an id."""
    return OPENAI.response(await site.responses.response("default", name))


class TestTurns:
    async def test_a_turn_has_one_id_and_the_next_another(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        site = Site(calling([CALL], [ANSWER], [ANSWER]))
        first = await ask(site)
        second = await ask(site, previous_response_id=first["id"], input=output_of(first))
        third = await ask(site, previous_response_id=second["id"], input=output_of(second))
        assert first["id"] == second["id"] == third["id"]
        said = f"Response {first['id']} (compatibility mode): continuing from previous response"
        assert caplog.text.count(said) == 2
        unknown = {"type": "function_call_output", "call_id": "x", "output": ""}
        answered = [*output_of(first), unknown]
        assert (await refused(ask(site, previous_response_id=first["id"], input=answered))).status == 400
        assert caplog.text.count(said) == 2, "one that is refused goes on with nothing"
        calls = [response["output"][-1] for response in (first, second)]
        assert calls[0]["call_id"] != calls[1]["call_id"]
        assert calls[0]["id"] != calls[1]["id"]
        assert [item["type"] for item in third["output"]] == ["message"], "old calls are not said again"
        another = await ask(site, previous_response_id=third["id"], input="Now something else.")
        assert another["id"] != first["id"]
        assert another["previous_response_id"] == first["id"]

    async def test_each_leg_is_read_with_numbers_of_its_own(self) -> None:
        site = Site(calling([ANSWER]))
        first = await begin(site)
        events = await first.to_the_end()
        response: ResponseObject = events[-1]["response"]  # type: ignore[assignment]
        second = await begin(site, previous_response_id=response["id"], input=output_of(response))
        more = await second.to_the_end()
        for each in (events, more):
            assert [event["sequence_number"] for event in each] == list(range(len(each)))
        assert await (await site.follow(response["id"])).to_the_end() == in_todays_words(more)

    async def test_its_id_stands_for_the_newest_leg(self) -> None:
        site = Site(calling([ANSWER]))
        first = await ask(site)
        second = await ask(site, previous_response_id=first["id"], input=output_of(first))
        name = first["id"]
        assert await got(site, name) == second
        asked = await site.responses.input_items("default", name)
        assert [item["type"] for item in asked] == ["function_call_output"]

    async def test_a_turn_that_is_deleted_is_gone_with_all_its_legs(self) -> None:
        site, name = Site(calling([CALL], [ANSWER])), ""
        leg = await ask(site)
        for _ in range(2):
            leg = await ask(site, previous_response_id=leg["id"], input=output_of(leg))
        name, own = leg["id"], [key[1] for key in site.store._responses]
        assert len(own) == 3
        await site.responses.delete("default", name)
        for each in (name, *own):
            for request in (
                site.responses.response("default", each),
                site.responses.input_items("default", each),
                site.responses.follow("default", each),
                site.responses.delete("default", each),
            ):
                assert (await refused(request)).status == 404
        assert (await refused(begin(site, previous_response_id=name))).code == "previous_response_not_found"
        assert not site.store._responses

    async def test_a_leg_that_runs_is_deleted_with_its_turn(self, gate: asyncio.Event) -> None:
        site = Site(calling([HALF, gate, ANSWER]))
        first = await ask(site)
        running = await begin(site, previous_response_id=first["id"], input=output_of(first))
        await running.until("response.output_text.delta")
        await site.responses.delete("default", first["id"])
        assert (await running.to_the_end())[-1]["response"]["status"] == "cancelled"  # type: ignore[index]
        assert (await refused(site.responses.response("default", first["id"]))).status == 404
        assert not site.store._responses

    async def test_who_deletes_a_turn_is_heard_by_the_memories_of_every_worker(self) -> None:
        store, others = FakeStore(), FakeOthers(reaches_others=True)
        site = Site(calling([ANSWER]), store, worker="a", others=others)
        other = Site(store=store, worker="b", others=others)
        forgotten: set[str] = set()
        other.forgetting.memories.add(forgotten.update)
        first = await ask(site)
        await ask(site, previous_response_id=first["id"], input=output_of(first))
        own = {key[1] for key in store._responses}
        await site.responses.delete("default", first["id"])
        assert forgotten == own
        assert len(own) == 2

    @pytest.mark.parametrize("output", [None, "18"])
    async def test_a_call_that_comes_back_completed_has_its_output_with_it_or_none(self, output: str | None) -> None:
        site = Site(calling([ANSWER]))
        first = await ask(site)
        call = {**first["output"][-1], "status": "completed", **({} if output is None else {"output": output})}
        second = await ask(site, previous_response_id=first["id"], input=[call])
        assert (second["id"], second["status"]) == (first["id"], "completed")
        prompt = decode_tokens(site.engine.requests[-1].prompt_token_ids)
        returned = f"functions.f to=assistant<|channel|>commentary<|message|>{output or ''}<|end|>"
        assert prompt.count("to=functions.f") == prompt.count(returned) == 1

    @pytest.mark.parametrize("dialect", ["openai", "turn-id"])
    async def test_in_other_dialects_it_is_an_echo_of_the_call(self, dialect: str) -> None:
        site = Site(calling([ANSWER]))
        first = await ask(site, parse_dialect(dialect))
        echo = {"previous_response_id": first["id"], "input": first["output"]}
        assert first["output"][-1]["status"] == "completed"
        error = await refused(begin(site, parse_dialect(dialect), **echo))
        assert (error.status, str(error)) == (
            400,
            f"No tool output found for function call {first['output'][-1]['call_id']}. Send it as an item of 'input'.",
        )
        outputs = output_of(first)
        answered = await ask(site, parse_dialect(dialect), **{**echo, "input": [*first["output"], *outputs]})
        assert answered["status"] == "completed"
        prompt = decode_tokens(site.engine.requests[-1].prompt_token_ids)
        assert prompt.count("to=functions.f") == prompt.count("functions.f to=assistant") == 1

    async def test_a_call_that_was_answered_before_is_not_answered_again_by_its_echo(self) -> None:
        site = Site(calling([CALL], [ANSWER]))
        first = await ask(site)
        second = await ask(site, previous_response_id=first["id"], input=output_of(first))
        again = [*first["output"], *second["output"], *output_of(second, "19")]
        third = await ask(site, previous_response_id=first["id"], input=again)
        assert third["status"] == "completed"
        prompt = decode_tokens(site.engine.requests[-1].prompt_token_ids)
        assert prompt.count("functions.f to=assistant") == 2

    @pytest.mark.parametrize("store", [True, False])
    async def test_of_two_that_go_on_at_once_one_is_a_conflict(self, store: bool) -> None:
        site = Site(calling([ANSWER], [ANSWER]))
        first = await ask(site)
        fields = {"previous_response_id": first["id"], "input": output_of(first), "store": store}
        both = await asyncio.gather(begin(site, **fields), begin(site, **fields), return_exceptions=True)
        [error] = [each for each in both if isinstance(each, BaseException)]
        assert isinstance(error, ApiError)
        assert error.status == 409
        [reading] = [each for each in both if isinstance(each, Reading)]
        assert (await reading.to_the_end())[-1]["type"] == "response.completed"

    @pytest.mark.parametrize("problem", [GenerationFailed("broke"), EngineOverloaded("full")])
    async def test_behind_a_leg_that_failed_it_goes_on_from_the_leg_before(self, problem: Exception) -> None:
        site = Site(calling([HALF, problem], [problem], [ANSWER]))
        first = await ask(site)
        fields = {"previous_response_id": first["id"], "input": output_of(first)}
        for _ in range(2):
            failed = await ask(site, **fields)
            assert (failed["id"], failed["status"]) == (first["id"], "failed")
            assert await got(site, first["id"]) == failed, "the newest leg is shown, whatever became of it"
        last = await ask(site, **fields)
        assert (last["id"], last["status"], last["previous_response_id"]) == (first["id"], "completed", None)
        assert await got(site, first["id"]) == last
        _, *again = [list(request.prompt_token_ids) for request in site.engine.requests]
        assert again[0] == again[1] == again[2]
        leg = await site.store.newest_leg("default", first["id"])
        assert leg.number == 4, "a leg that failed keeps its number"

    @pytest.mark.parametrize("background", [True, False])
    async def test_behind_a_leg_that_was_cancelled_it_goes_on_from_the_leg_before(self, background: bool) -> None:
        site = Site(calling([HALF, asyncio.Event()], [ANSWER]))
        first = await ask(site)
        fields = {"previous_response_id": first["id"], "input": output_of(first)}
        running = await begin(site, **fields, background=background)
        await running.until("response.output_text.delta")
        running.leave()
        if background:
            await site.responses.cancel("default", first["id"])
        await idle(site)
        assert (await got(site, first["id"]))["status"] == "cancelled"  # type: ignore[index]
        last = await ask(site, **fields)
        assert (last["id"], last["status"]) == (first["id"], "completed")

    async def test_behind_a_leg_whose_worker_died_it_goes_on_from_the_leg_before(self) -> None:
        store = FakeStore()
        site = Site(calling([HALF, asyncio.Event()]), store, worker="a")
        first = await ask(site)
        fields = {"previous_response_id": first["id"], "input": output_of(first)}
        running = await begin(site, **fields)
        await running.until("response.output_text.delta")
        other = Site(FakeEngine([[ANSWER]]), store, worker="b", new_id=site.new_id)
        assert (await refused(begin(other, **fields))).status == 409, "nobody knows yet that it has died"
        assert (await store.reclaim("b", dead_before=0.0)).failed == 1
        last = await ask(other, **fields)
        assert (last["id"], last["status"]) == (first["id"], "completed")

    async def test_a_request_that_comes_again_goes_on_from_the_leg_that_made_the_call(self) -> None:
        site = Site(calling([CALL], [ANSWER], [CALL], [ANSWER]))
        legs = [await ask(site)]
        for _ in range(2):
            legs.append(await ask(site, previous_response_id=legs[-1]["id"], input=output_of(legs[-1])))
        for again in (1, 0):  # the last request, and the one before it
            fields = {"previous_response_id": legs[0]["id"], "input": output_of(legs[again])}
            assert (await ask(site, **fields))["id"] == legs[0]["id"]
            first, newest = (site.engine.requests[index].prompt_token_ids for index in (again + 1, -1))
            assert list(newest) == list(first)
        user = {"role": "user", "content": "And now?"}
        branched = await ask(site, previous_response_id=legs[0]["id"], input=[*output_of(legs[1]), user])
        assert branched["id"] != legs[0]["id"], "the user says something new"
        prompt = decode_tokens(site.engine.requests[-1].prompt_token_ids)
        assert prompt.count("<|message|>18<|end|>") == 2, "the first output, and the second"
        last = await ask(site, previous_response_id=legs[0]["id"], input="So?")
        assert last["previous_response_id"] == legs[0]["id"]

    @pytest.mark.parametrize("store", [True, False])
    async def test_so_it_does_in_a_connection_that_remembers_the_newest_leg(self, store: bool) -> None:
        site = Site(calling([ANSWER], [ANSWER], [ANSWER]))
        origin = Origin(transport="websocket", project="default")
        known: dict[str, ChainLink] = {}

        async def leg(**fields: object) -> ResponseObject:
            request = parse_create({"input": "hi", "store": store, **fields})
            reading = Reading(site, await site.service.create(request, origin, recall=known.get, dialect=CODEX))
            response: ResponseObject = (await reading.to_the_end())[-1]["response"]  # type: ignore[assignment]
            assert reading.reader.source.link is not None
            known[response["id"]] = reading.reader.source.link
            return response

        first = await leg()
        for _ in range(3):
            await leg(previous_response_id=first["id"], input=output_of(first))
        _, *prompts = [list(request.prompt_token_ids) for request in site.engine.requests]
        assert prompts[0] == prompts[1] == prompts[2]
        [link] = known.values()
        assert link.public.leg == 4, "each has a number of its own"

    @pytest.mark.parametrize("kept", ["stored", "remembered", "unstored"])
    @pytest.mark.parametrize("output", ["18", None, [{"type": "output_text", "text": "18"}]])
    @pytest.mark.parametrize(("tool", "written"), [("function", "arguments"), ("custom", "input")])
    async def test_a_call_that_comes_back_by_its_id_is_its_result(
        self, tool: str, written: str, output: object, kept: str
    ) -> None:
        site = Site(calling([ANSWER], [ANSWER]))
        tools, known = [{"type": tool, "name": "f"}], dict[str, ChainLink]()

        async def leg(dialect: Dialect = CODEX, **fields: object) -> ResponseObject:
            request = parse_create({"input": "hi", "tools": tools, "store": kept != "unstored", **fields})
            origin = Origin(transport="websocket", project="default")
            reading = Reading(site, await site.service.create(request, origin, recall=known.get, dialect=dialect))
            response: ResponseObject = (await reading.to_the_end())[-1]["response"]  # type: ignore[assignment]
            if kept != "stored" and reading.reader.source.link is not None:
                known[response["id"]] = reading.reader.source.link
            return response

        first = await leg()
        [call] = first["output"]
        own = {} if output is None else {"output": output}
        item = {"type": call["type"], "call_id": call["call_id"], "status": "completed", **own}
        asked = {"previous_response_id": first["id"], "input": [item]}
        elsewhere = await refused(leg(OPENAI, **asked))
        assert (elsewhere.status, elsewhere.param) == (400, "input[0].name" if tool == "function" else "input")
        second = await leg(**asked)
        assert second["id"] == first["id"]
        prompt = decode_tokens(site.engine.requests[-1].prompt_token_ids)
        said = (
            "<|start|>functions.f to=assistant<|channel|>commentary<|message|>" + ("18" if output else "") + "<|end|>"
        )
        assert prompt.count("functions.f to=assistant") == prompt.count(said) == 1
        assert prompt.count("to=functions.f") == 1, "the call stands there once"
        if kept != "unstored":
            [shown] = await site.responses.input_items("default", second["id"])
            assert {name: shown[name] for name in ("call_id", "name", written, "output")} == {
                "call_id": call["call_id"],
                "name": "f",
                written: call[written],
                "output": output or "",
            }

    async def test_a_turn_that_began_in_another_dialect_goes_on_under_an_id_of_its_own(self) -> None:
        site = Site(calling([CALL], [ANSWER]))
        first = await ask(site, OPENAI)
        second = await ask(site, previous_response_id=first["id"], input=output_of(first))
        assert second["id"] != first["id"]
        third = await ask(site, OPENAI, previous_response_id=second["id"], input=output_of(second))
        assert third["id"] not in (first["id"], second["id"])

    async def test_a_leg_that_runs_elsewhere_is_followed_by_its_public_id(self, gate: asyncio.Event) -> None:
        store, others = FakeStore(), FakeOthers(reaches_others=True)
        owner = Site(calling([HALF, gate, ANSWER]), store, worker="a", others=others)
        asked = Site(store=store, worker="b", others=others)
        first = await ask(owner)
        running = await begin(owner, previous_response_id=first["id"], input=output_of(first), background=True)
        await running.until("response.output_text.delta")
        assert (await refused(begin(asked, previous_response_id=first["id"], input=output_of(first)))).status == 409
        followed = await asked.follow(first["id"])
        gate.set()
        assert await followed.to_the_end() == in_todays_words(await running.to_the_end())

    async def test_a_leg_of_a_dead_worker_goes_on_from_the_leg_before_it(self) -> None:
        store = FakeStore()
        site = Site(calling([HALF, asyncio.Event()]), store, worker="a")
        first = await ask(site)
        running = await begin(site, previous_response_id=first["id"], input=output_of(first), background=True)
        await running.until("response.output_text.delta")
        orphans = await store.reclaim("b", dead_before=0.0)
        other = Site(FakeEngine([[ANSWER]]), store, worker="b")
        [accepted] = orphans.claimed
        await other.service.run_again(accepted)
        await idle(other)
        response = await other.responses.response("default", first["id"])
        assert (response["id"], response["status"]) == (first["id"], "completed")
        assert response["previous_response_id"] is None
        leg = await store.newest_leg("default", first["id"])
        assert leg.number == 2
        [ended] = [each for each in store._responses.values() if each.response["id"] == leg.response_id]
        assert ended.of.link.parent.known_as != leg.response_id  # type: ignore[union-attr]


def in_todays_words(events: list[JsonObject]) -> list[JsonObject]:
    """Return events that were read in `codex-turn` as they are in today's spec."""
    return [
        {**event, "type": str(event["type"]).replace("response.reasoning.", "response.reasoning_text.")}
        for event in events
    ]


OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([OUTPUT], True),
        ([OUTPUT, OUTPUT], True),
        ([{"role": "developer", "content": "x"}, OUTPUT], True),
        ([{"type": "custom_tool_call_output", "call_id": "c", "output": "x"}], True),
        ([{"type": "function_call", "call_id": "c", "name": "f", "arguments": "", "status": "completed"}], False),
        ([{"type": "function_call", "call_id": "c", "name": "f", "arguments": "", "output": "x"}], True),
        ([{"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}], False),
        ([OUTPUT, USER], False),
        ([USER], False),
        ([], False),
    ],
)
def test_what_goes_on_with_a_turn(items: list[JsonObject], expected: bool) -> None:
    assert goes_on(parse_create({"input": items}).input_json) is expected


class TestChosenIds:
    async def test_a_response_is_known_by_it_everywhere(self) -> None:
        site = Site(FakeEngine([[ANSWER], [ANSWER]]))
        response = await ask(site, OPENAI, request_id="my-id_1")
        assert response["id"] == "my-id_1"
        assert "public_id" not in response
        assert await got(site, "my-id_1") == response
        events = await (await site.follow("my-id_1")).to_the_end()
        assert events[-1]["response"] == response
        more = await ask(site, OPENAI, previous_response_id="my-id_1")
        assert more["previous_response_id"] == "my-id_1"
        assert more["id"].startswith("resp_")
        await site.responses.delete("default", "my-id_1")
        assert (await refused(site.responses.response("default", "my-id_1"))).status == 404

    @pytest.mark.parametrize("store", [True, False])
    async def test_one_that_is_taken_is_a_conflict(self, store: bool, gate: asyncio.Event) -> None:
        site = Site(FakeEngine([[HALF, gate, ANSWER], [ANSWER]]))
        running = await begin(site, OPENAI, request_id="my-id", store=store)
        error = await refused(begin(site, OPENAI, request_id="my-id", store=store))
        assert (error.status, error.type, error.param) == (409, "conflict_error", "request_id")
        gate.set()
        await running.to_the_end()
        again = begin(site, OPENAI, request_id="my-id", store=store)
        if store:
            assert (await refused(again)).status == 409
        else:
            await (await again).to_the_end()

    async def test_nobody_takes_the_id_that_another_response_has_of_itself(self) -> None:
        site = Site(FakeEngine([[ANSWER]]))
        response = await ask(site, OPENAI)
        assert (await refused(begin(site, OPENAI, request_id=response["id"]))).status == 409

    @pytest.mark.parametrize("store", [True, False])
    async def test_of_many_that_want_it_at_once_one_gets_it(self, store: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        site = Site(FakeEngine([[ANSWER]] * 5))
        knows = site.store.knows

        async def slowly(project: str, name: str) -> bool:
            await asyncio.sleep(0)
            return await knows(project, name)

        monkeypatch.setattr(site.store, "knows", slowly)
        many = await asyncio.gather(
            *(begin(site, OPENAI, request_id="my-id", store=store) for _ in range(5)), return_exceptions=True
        )
        assert [each.status for each in many if isinstance(each, ApiError)] == [409] * 4
        [reading] = [each for each in many if isinstance(each, Reading)]
        assert (await reading.to_the_end())[-1]["response"]["id"] == "my-id"  # type: ignore[index]

    async def test_the_ids_inside_are_the_servers_own(self) -> None:
        site = Site(FakeEngine([[ANSWER], [ANSWER]]))
        items = [(await ask(site, OPENAI, request_id=name))["output"][0]["id"] for name in ("a", "b")]
        assert all(len(str(item)) == len("msg_") + 32 for item in items)
        assert items == sorted(items)

    async def test_counting_its_tokens_takes_no_id(self) -> None:
        site = Site(FakeEngine([[ANSWER]]))
        request = parse_create({"input": "hi", "request_id": "my-id"}, engine_fields=True)
        await site.service.count_input_tokens(request, Origin(transport="json", project="default"))
        assert (await ask(site, OPENAI, request_id="my-id"))["id"] == "my-id"
