"""What routers before vLLM servers are told: each adapter against what was published of the router, held strictly."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest

from engine.backends.vllm.routers import MAX_RETAINED, MIN_RETAINED, NO_ROUTER, Dynamo, LlmD, Router
from engine.backends.vllm.server import VllmServerEngine
from engine.backends.vllm.wire import COMPLETIONS, GENERATE
from engine.errors import EngineConfigurationError
from engine.types import NO_SESSION, GenerationRequest, Session, digest_of
from tests.contracts.engine import assert_whole, collect
from tests.kit.fake_vllm import FakeVllm
from tests.kit.waiting import eventually
from tests.unit.engine.vllm_engines import SCRIPT, OpenPool, over, prompt

SESSION = Session(id=digest_of("p", "s"), parent=digest_of("p", "parent"), project=digest_of("p"))


def request(session: Session = SESSION, **fields: Any) -> GenerationRequest:
    return GenerationRequest(request_id="r", prompt_token_ids=prompt("short"), session=session, **fields)


class TestLlmD:
    """llm-d 0.8: "EPP HTTP Headers Reference"; the README files of `session-id-producer` and `kv-cache-retention`."""

    @pytest.mark.parametrize(("fairness", "share"), [("project", SESSION.project), ("session", SESSION.id)])
    def test_who_shares_capacity_and_what_it_is_for(self, fairness: str, share: str) -> None:
        assert LlmD("interactive", fairness).headers(request()) == {
            "x-llm-d-inference-objective": "interactive",
            "x-gateway-inference-objective": "interactive",
            "x-llm-d-inference-fairness-id": share,
            "x-gateway-inference-fairness-id": share,
            "x-session-id": SESSION.id,
            "x-parent-session-id": SESSION.parent,
        }

    def test_nothing_is_said_of_what_nobody_knows(self) -> None:
        alone = Session(id="x")
        assert LlmD().headers(request(alone)) == {"x-session-id": "x"}
        assert LlmD().headers(request(NO_SESSION)) == {}
        assert LlmD().fields(request()) == {}

    @pytest.mark.parametrize(("back_in", "kept"), [(54.5, 54.5), (0.01, MIN_RETAINED), (1e6, MAX_RETAINED)])
    def test_blocks_are_kept_for_as_long_as_the_next_turn_is_likely_to_come(self, back_in: float, kept: float) -> None:
        waits = Session(id="x", back_in=back_in)
        assert LlmD().fields(request(waits)) == {
            "retention_directives": [{"start": 0, "end": None, "priority": 70, "duration": kept}],
            "retention_scope": "x",
        }


class TestDynamo:
    """Dynamo 1.6: "Session IDs"; `NvExt` and `AgentHints` of its `extensions.rs`, which deny unknown fields."""

    def test_a_session_and_its_parent(self) -> None:
        assert Dynamo().headers(request()) == {
            "X-Dynamo-Session-ID": SESSION.id,
            "X-Dynamo-Parent-Session-ID": SESSION.parent,
        }
        assert Dynamo().headers(request(Session(id="x", final=True))) == {
            "X-Dynamo-Session-ID": "x",
            "X-Dynamo-Session-Final": "true",
        }
        assert Dynamo().headers(request(NO_SESSION)) == {}

    def test_more_is_sooner_there(self) -> None:
        assert Dynamo().fields(request(priority=-5)) == {"nvext": {"agent_hints": {"priority": 5}}}

    def test_it_is_told_nothing_that_it_refuses(self) -> None:
        assert Dynamo().fields(request(Session(id="x", back_in=9.0))) == {}


@pytest.mark.parametrize("wire", [GENERATE, COMPLETIONS])
def test_without_a_router_a_body_is_as_it_was(wire: Any) -> None:
    asked = request(Session(id="x", back_in=9.0), priority=3)
    body = wire.body(asked, model="m", max_tokens=5, priority=3, more=NO_ROUTER.fields(asked))
    assert NO_ROUTER.headers(asked) == {}
    assert body == wire.body(asked, model="m", max_tokens=5, priority=3)
    assert set(orjson.loads(wire.body(asked, model="m", max_tokens=5, priority=3, more=LlmD().fields(asked)))) - set(
        orjson.loads(body)
    ) == {"retention_directives", "retention_scope"}


KNOWN = {"llm-d": LlmD("batch"), "dynamo": Dynamo()}
OPTIONS: Mapping[str, dict[str, object]] = {
    "llm-d": {"router": "llm-d", "router_objective": "batch"},
    "dynamo": {"router": "dynamo"},
}
OURS = ("x-llm-d", "x-gateway", "x-dynamo", "x-session", "x-parent")


@pytest.mark.parametrize("router", KNOWN)
@pytest.mark.parametrize("scale_out", [True, False])
async def test_over_http_a_server_is_told_and_answers_as_ever(pool: OpenPool, router: str, scale_out: bool) -> None:
    [fake], engine = await pool(1, *SCRIPT, scale_out=scale_out, options=OPTIONS[router])
    asked = request(Session(id=SESSION.id, parent=SESSION.parent, project=SESSION.project, back_in=7.0), priority=-2)
    assert_whole(await collect(engine, asked))
    (seen,) = fake.generations
    adapter: Router = KNOWN[router]
    said = {name: value for name, value in seen.headers.items() if name.startswith(OURS)}
    assert said == {name.lower(): value for name, value in adapter.headers(asked).items()}
    assert {name: seen.body[name] for name in adapter.fields(asked)} == adapter.fields(asked)
    assert said
    assert adapter.fields(asked)


async def test_dynamo_is_told_once_that_a_session_is_over(pool: OpenPool) -> None:
    [fake], engine = await pool(1, *SCRIPT, options={"router": "dynamo"})
    await collect(engine, request())
    engine.end_session(SESSION)
    await eventually(lambda: len(fake.generations) == 2)
    first, last = fake.generations
    assert "x-dynamo-session-final" not in first.headers
    assert last.headers["x-dynamo-session-id"] == SESSION.id
    assert last.headers["x-dynamo-session-final"] == "true"
    assert last.body["sampling_params"]["max_tokens"] == 1
    assert len(last.body["token_ids"]) < 5
    await eventually(lambda: not engine._endings)
    assert len(engine._pool.choice) == 0, "its home is forgotten, and not remembered by its end"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "session"),
    [({}, SESSION), ({"router": "llm-d"}, SESSION), ({"router": "dynamo"}, NO_SESSION)],
    ids=["no router", "a router that does not ask for it", "no session"],
)
async def test_nobody_else_is_told(pool: OpenPool, options: dict[str, object], session: Session) -> None:
    [fake], engine = await pool(1, *SCRIPT, options=options)
    shared = replace(SESSION, shared=True)
    for asked in (session, shared):
        await collect(engine, request(asked))
    for ended in (shared, Session(id="unknown"), session):
        engine.end_session(ended)
    await asyncio.sleep(0)
    assert not engine._endings
    assert len(fake.generations) == 2


async def test_a_router_that_is_away_and_an_engine_that_closes_leave_nothing_behind(
    pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    [fake], engine = await pool(1, *SCRIPT, options={"router": "dynamo"})
    await collect(engine, request())
    fake.switches.refusal = (503, {})
    with caplog.at_level("INFO", "respsite.engine"):
        engine.end_session(SESSION)
        await eventually(lambda: not engine._endings)
    assert "was not told that a session is over" in caplog.text
    fake.switches.refusal = None
    await collect(engine, request())
    fake.switches.fault = "silence"
    engine.end_session(SESSION)
    await eventually(lambda: len(fake.generations) == 4)
    await engine.aclose()
    assert not engine._endings
    engine.end_session(SESSION)
    assert not engine._endings


@pytest.mark.parametrize("status", [404, 400, 429, 500, 502])
async def test_what_a_router_says_of_a_session_that_is_over_is_not_held_against_it(pool: OpenPool, status: int) -> None:
    fakes, engine = await pool(2, *SCRIPT, options={"router": "dynamo"})
    pool = engine._pool
    assert pool is not None
    for number in range(4):
        session = replace(SESSION, id=f"{number}")
        await collect(engine, request(session))
        for fake in fakes:
            fake.switches.refusal = (status, {})
        engine.end_session(session)
        await eventually(lambda: not engine._endings)
        for fake in fakes:
            fake.switches.refusal = None
        assert len(pool.services) == 2
        assert not any(replica.is_suspect for replica in pool.replicas)


async def test_a_router_that_does_not_say_how_long_a_context_is(fake: FakeVllm) -> None:
    fake.switches.says_max_model_len = False
    engine = over(fake)
    with pytest.raises(EngineConfigurationError, match=r"Is it a router\? Then set max_model_len in ENGINE_OPTIONS"):
        await engine.start()
    await engine.aclose()
    engine = over(fake, max_model_len=1234)
    assert (await engine.start()).max_model_len == 1234
    await engine.aclose()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"router": "nginx"}, "needs router to be one of none, llm-d, dynamo"),
        ({"router": "llm-d", "router_fairness": "key"}, "needs router_fairness to be one of project, session"),
        ({"router": "llm-d", "router_objective": 1}, "needs router_objective to be a string"),
        ({"router": "llm-d", "router_objective": "a\nb"}, "router_objective has characters"),
        ({"router": "dynamo", "router_objective": "x"}, "router_objective and router_fairness are for"),
        ({"router_fairness": "project"}, "router_objective and router_fairness are for"),
        ({"max_model_len": 1}, "needs max_model_len to be a whole number of 2 or more"),
    ],
)
def test_wrong_options_are_said(options: dict[str, object], message: str) -> None:
    with pytest.raises(EngineConfigurationError, match=message):
        VllmServerEngine(model="m", options={"urls": ["http://x"], **options}).check()
