"""`/v1/engine` on the demo engine, over two workers: pauses, updates of weights, and what may not be done."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.kit.clients import Frame, Socket, http_client, read_error_answer, ready, text_of
from tests.kit.closed import ClosedServer, bearer
from tests.kit.fixtures import module_pair
from tests.kit.raw_streams import RawStream
from tests.kit.server import Server
from tests.kit.stored import end_lease, owner_of
from tests.kit.waiting import eventually

LEASE = 10.0  # WORKER_LEASE_SECONDS
MOST = 600.0  # ENGINE_PAUSE_SECONDS
WORDS = "one two three four five six seven eight nine ten"
SAYS = " ".join([WORDS] * 8)  # two seconds
LONG = " ".join([SAYS] * 4)  # for whatever is done meanwhile


# With Redis: without, each step takes up to a second (`test_rollout_weights`).
pair = module_pair(
    "engines",
    redis=True,
    engine="demo",
    engine_weights="on",
    engine_options={"tokens_per_second": 40},
    worker_lease_seconds=LEASE,
    engine_pause_seconds=MOST,
    responses_ping_interval_seconds=0.2,
)


@pytest.fixture
async def one(pair: tuple[Server, Server]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the first; the engine runs before and behind each test."""
    async with http_client(pair[0]) as http:
        yield http
        state = (await http.get("/engine")).json()
        if state["update"]:
            await done(http, "weights", action="cancel")
        if state["pause"]:
            await done(http, "resume")


async def done(http: httpx.AsyncClient, what: str, **fields: object) -> Frame:
    """Do something to the engine, and return how it is then."""
    answer = await http.post(f"/engine/{what}", json=fields)
    assert answer.status_code == 200, answer.text
    engine: Frame = answer.json()
    return engine


async def refused(
    http: httpx.AsyncClient, what: str, *, status: int, code: str, param: str | None = None, **fields: object
) -> str:
    """Ask for what may not be done, and return why."""
    answer = await http.post(f"/engine/{what}", json=fields)
    return read_error_answer(answer, status=status, code=code, param=param)


async def worker_of(server: Server) -> str:
    """Return the id of a worker."""
    stream = await RawStream.create(server, input=f"repeat: {LONG}")
    try:
        (created,) = await stream.take(1)
        return owner_of(server, created["response"]["id"])
    finally:
        stream.kill()


async def said(http: httpx.AsyncClient, text: str = WORDS) -> str:
    """Return what the model says."""
    answer = await http.post("/responses", json={"input": f"repeat: {text}", "store": False})
    assert answer.status_code == 200, answer.text
    return text_of(answer.json())


@asynccontextmanager
async def updated(http: httpx.AsyncClient, version: str, seed: int) -> AsyncIterator[None]:
    """Change the weights step by step, in a pause."""
    await done(http, "pause")
    yield
    await done(http, "weights", action="begin", version=version)
    await done(http, "weights", action="update", info={"seed": seed})
    await done(http, "weights", action="finish")
    await done(http, "resume")


@pytest.mark.each_database
async def test_an_update_reaches_every_worker(one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
    before = await said(one)
    assert before == await said(two) == WORDS
    async with updated(one, "step-1", 1):
        for http in (one, two):
            engine = (await http.get("/engine")).json()
            assert (engine["status"], engine["pause"]["mode"], engine["workers"]) == ("paused", "keep", 2)
    assert await said(one) == await said(two) == WORDS.title()
    engine = (await two.get("/engine")).json()
    assert (engine["status"], engine["version"], engine["update"]) == ("running", "step-1", None)
    assert engine["versions"][-1] == "step-1"
    assert [(each["version"], each["problem"]) for each in engine["replicas"]] == [("step-1", None)] * 2
    assert (await done(two, "weights", action="apply", version="step-2", info={"seed": 0}))["version"] == "step-2"
    assert await said(one) == await said(two) == WORDS
    assert (await one.get("/engine")).json()["versions"][-2:] == ["step-1", "step-2"]


async def test_a_turn_that_is_frozen_goes_on_with_the_new_weights(
    pair: tuple[Server, Server], one: httpx.AsyncClient
) -> None:
    async with await Socket.open(pair[1].ws_url) as socket:
        await socket.create(f"repeat: {LONG}")
        while not socket.frames("response.output_text.delta"):
            await socket.receive()
        async with updated(one, "frozen", 1):
            waiting = asyncio.create_task(said(one, "late"))
        assert await waiting == "Late"
        while not any(frame["delta"].istitle() for frame in socket.frames("response.output_text.delta")):
            await socket.receive()
        created = socket.frames("response.created")[0]["response"]["id"]
        await socket.send({"type": "response.interrupt", "response_id": created})
        text = text_of((await socket.answer())[-1]["response"])
    assert LONG.startswith(text.lower())
    assert text != text.title()
    changed = [word.istitle() for word in text.split()]
    assert changed == sorted(changed), "first the old weights' words, then the new ones'"
    await done(one, "weights", action="apply", version="default-again", info={"seed": 0})


async def test_streams_are_kept_alive_in_a_pause(one: httpx.AsyncClient) -> None:
    await done(one, "pause")
    request = {"input": "repeat: x", "stream": True, "store": False}
    async with one.stream("POST", "/responses", json=request, timeout=30) as answer:
        lines = answer.aiter_lines()
        pings = 0
        async for line in lines:
            pings += line.startswith(":")
            if pings == 3:
                break
        await done(one, "resume")
        assert any("response.completed" in line for line in [line async for line in lines])


async def test_a_pause_that_waits_lets_turns_end(pair: tuple[Server, Server], one: httpx.AsyncClient) -> None:
    async with await Socket.open(pair[1].ws_url) as socket:
        await socket.create(f"repeat: {WORDS} {WORDS}")
        while not socket.frames("response.output_text.delta"):
            await socket.receive()
        pausing = asyncio.create_task(done(one, "pause", mode="wait"))
        assert text_of((await socket.until("response.completed"))[-1]["response"]) == f"{WORDS} {WORDS}"
        assert (await pausing)["pause"]["mode"] == "wait"
    await done(one, "resume")


async def test_a_pause_that_aborts_ends_turns_with_an_error_that_may_be_retried(
    pair: tuple[Server, Server], one: httpx.AsyncClient, two: httpx.AsyncClient
) -> None:
    async def in_flight() -> bool:
        return bool((await ready(pair[1]))["responses_in_flight"] == 2)

    async with await Socket.open(pair[1].ws_url) as socket:
        await socket.create(f"repeat: {LONG}")
        while not socket.frames("response.output_text.delta"):
            await socket.receive()
        whole = asyncio.create_task(two.post("/responses", json={"input": f"repeat: {LONG}", "store": False}))
        await eventually(in_flight)
        await done(one, "pause", mode="abort")
        assert "again" in (await whole).json()["error"]["message"]
        failed = (await socket.until("response.failed"))[-1]["response"]["error"]
        assert failed["code"] == "server_error"
        assert "paused" in failed["message"]
        assert "again" in failed["message"]
    await done(one, "resume")
    assert await said(one, "well") == "well"


async def test_a_trainer_that_dies_leaves_a_pause_that_ends(one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
    await done(one, "pause")
    await done(one, "weights", action="begin", version="never")
    await done(one, "pause", lease_seconds=1)
    assert await said(two, "on it goes") == "on it goes"

    async def goes_on() -> bool:
        engine = (await one.get("/engine")).json()
        return bool(engine["status"] == "running" and not engine["busy"])

    await eventually(goes_on)
    engine = (await one.get("/engine")).json()
    assert (engine["update"], engine["pause"]) == (None, None)
    assert "never" not in engine["versions"]


async def test_an_update_that_was_begun_and_left_names_the_weights_as_failed(one: httpx.AsyncClient) -> None:
    await done(one, "pause")
    await done(one, "weights", action="begin", version="half")
    await done(one, "weights", action="update", info={"seed": 3})
    engine = await done(one, "weights", action="cancel")
    assert engine["version"] == engine["versions"][-1] == "failed:half"
    await done(one, "resume")
    await done(one, "weights", action="apply", version="whole", info={"seed": 0})


async def test_a_lease_is_given_more_time(one: httpx.AsyncClient) -> None:
    short = (await done(one, "pause", lease_seconds=30))["pause"]["until"]
    await done(one, "weights", action="begin", version="slow")
    longer = (await done(one, "pause", lease_seconds=200))["pause"]["until"]
    assert longer - short >= 165
    await refused(one, "pause", status=409, code="weights_update_open", mode="abort")


async def test_what_is_wrong_is_said(one: httpx.AsyncClient) -> None:
    invalid = {"status": 400, "code": "invalid_value"}
    await refused(one, "pause", **invalid, param="mode", mode="freeze")
    reason = await refused(one, "pause", **invalid, param="lease_seconds", lease_seconds=365 * 86_400)
    assert "ENGINE_PAUSE_SECONDS" in reason
    await refused(one, "pause", status=404, code="model_not_found", param="model", model="another")
    await refused(one, "resume", status=409, code="engine_not_paused")
    await refused(one, "weights", status=409, code="engine_not_paused", action="begin", version="v")
    for action in ("update", "finish", "cancel"):
        fields = {"info": {"seed": 1}} if action == "update" else {}
        await refused(one, "weights", status=409, code="no_update", action=action, **fields)
    await refused(one, "weights", status=400, code="missing_required_parameter", param="version", action="begin")
    await refused(one, "weights", status=400, code="missing_required_parameter", param="info", action="update")
    await refused(one, "weights", **invalid, param="version", action="finish", version="v")
    await refused(one, "weights", **invalid, param="version", action="begin", version="failed:v")


@pytest.mark.parametrize("version", ["", "x" * 129, "a b", "ü", 5, None])
async def test_a_version_that_is_none_is_refused(one: httpx.AsyncClient, version: object) -> None:
    answer = await one.post("/engine/weights", json={"action": "begin", "version": version})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "version"


async def test_one_update_at_a_time(one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
    await done(one, "pause")
    await done(one, "weights", action="begin", version="a")
    await refused(two, "weights", status=409, code="weights_update_open", action="begin", version="b")
    await refused(two, "weights", status=409, code="engine_paused", action="apply", version="b", info={"seed": 1})
    await refused(two, "resume", status=409, code="weights_update_open")
    reason = await refused(two, "weights", status=400, code="weights_refused", action="update", info={"seed": "x"})
    assert "seed" in reason


@pytest.mark.each_database
async def test_many_at_once_are_one_after_the_other(one: httpx.AsyncClient, two: httpx.AsyncClient) -> None:
    applied = [
        http.post("/engine/weights", json={"action": "apply", "version": f"at-once-{number}", "info": {"seed": 0}})
        for number, http in enumerate((one, two) * 4)
    ]
    answers = await asyncio.gather(*applied)
    statuses = {answer.status_code for answer in answers}
    assert statuses <= {200, 409}
    assert 200 in statuses
    engine = (await one.get("/engine")).json()
    assert (engine["status"], engine["busy"], engine["update"]) == ("running", False, None)
    assert {each["version"] for each in engine["replicas"]} == {engine["version"]} == {engine["versions"][-1]}


async def test_a_worker_that_comes_into_a_pause_joins_it(
    pair: tuple[Server, Server], one: httpx.AsyncClient, two: httpx.AsyncClient
) -> None:
    stopped = await worker_of(pair[1])
    await done(one, "pause")
    await asyncio.to_thread(pair[1].stop)
    end_lease(pair[0], stopped)  # the others would wait for what it says
    await asyncio.to_thread(pair[1].start)
    answer = asyncio.create_task(said(two, "hello"))

    async def joined() -> bool:
        return bool((await one.get("/engine")).json()["workers"] == 2)

    await eventually(joined)
    assert not answer.done()
    await done(one, "resume")
    assert await answer == "hello"


async def test_a_worker_that_dies_while_it_changes_the_engine_leaves_one_that_goes_on(
    pair: tuple[Server, Server], one: httpx.AsyncClient, two: httpx.AsyncClient
) -> None:
    async def is_busy() -> bool:
        return bool((await one.get("/engine")).json()["busy"])

    async def is_idle() -> bool:
        return not await is_busy()

    killed = await worker_of(pair[1])
    async with await Socket.open(pair[0].ws_url) as socket:
        await socket.create(f"repeat: {LONG}")  # for which the change waits
        created = (await socket.until("response.output_text.delta"))[0]["response"]["id"]
        applied = {"action": "apply", "version": "unfinished", "info": {"seed": 0}, "mode": "wait"}
        applying = asyncio.create_task(two.post("/engine/weights", json=applied))
        await eventually(is_busy)
        pair[1].kill()
        with pytest.raises(httpx.TransportError):
            await applying
        end_lease(pair[0], killed)
        await socket.send({"type": "response.interrupt", "response_id": created})
        await socket.answer()
    try:
        assert await said(one, "on it goes") == "on it goes"
        await eventually(is_idle)
        # How far the dead one came nobody knows.
        assert (await one.get("/engine")).json()["version"] == "failed:unfinished"
        assert (await done(one, "pause"))["workers"] == 1
    finally:
        await asyncio.to_thread(pair[1].start)


def test_keys_need_the_scope_and_the_setting(closed: ClosedServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    def asked(server: ClosedServer, *scopes: str) -> list[int]:
        headers = bearer(server.new_key(*(("--scopes", ",".join(scopes)) if scopes else ())))
        with httpx.Client(base_url=server.base_url, headers=headers, verify=False, timeout=30) as http:
            return [http.get("/engine").status_code, http.post("/engine/resume", json={}).status_code]

    assert asked(closed, "api.engine.read", "api.engine.write") == [404, 404]
    with ClosedServer(tmp_path_factory.mktemp("doors"), engine="demo", auth="on", engine_weights="on") as server:
        assert asked(server) == [403, 403]
        assert asked(server, "api.responses.write") == [403, 403]
        assert asked(server, "api.engine.read") == [200, 403]
        assert asked(server, "api.engine.read", "api.engine.write") == [200, 409]


def test_an_engine_without_doors_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    script = [{"say": "<|channel|>final<|message|>Hi<|return|>"}]
    with (
        Server(tmp_path_factory.mktemp("none"), script=script, model_name="m", engine_weights="on") as server,
        httpx.Client(base_url=server.base_url, timeout=30) as http,
    ):
        for answer in (http.get("/engine"), http.post("/engine/pause", json={})):
            read_error_answer(answer, status=400, code="unsupported_engine", param="model")
