"""Mutated bodies and frames over every field and item type: no 500, no traceback, a memory that stays as it is.

Only this finds a body that nobody has thought of.

How long is said in `shares`; half of it is under each server, and no example comes to both. A failure is shrunk, and
its seed printed; `make fuzz FUZZ_SEED=…` begins there.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.kit.closed import ClosedServer
from tests.kit.server import KINDS
from tests.system.fuzz import strategies
from tests.system.fuzz.driver import HttpDriver, OutputsDriver, SocketDriver, noise, send_raw
from tests.system.fuzz.samples import TOOLS, Json
from tests.system.fuzz.shares import HOSTILE_SECONDS, SEED

EXAMPLES = 60  # in one round: then another way in has its turn
BODIES = EXAMPLES // len(KINDS)  # in one round, of JSON that either server hands on as it is
WARM_UP = 0.4  # of the time, after which caches and pools have their size
GROWTH_BYTES = 48 * 1024 * 1024  # of noise: the allocator's, and what is kept for the latest responses

PATHS = st.sampled_from(
    [
        ("GET", "/responses/{id}"),
        ("DELETE", "/responses/{id}"),
        ("POST", "/responses/{id}/cancel"),
        ("GET", "/responses/{id}/input_items"),
        ("GET", "/conversations/{id}"),
        ("GET", "/conversations/{id}/items"),
        ("DELETE", "/conversations/{id}/items/{id}"),
        ("GET", "/models/{id}"),
    ]
)
SCHEMES = st.sampled_from(["Bearer ", "bearer  ", "Basic ", "", "Bearer\t", "Bearer,", "Bearer sk-"])
SECRETS = st.one_of(
    st.sampled_from(["KEY", "KEY ", " KEY", "KEYKEY", "sk-", "", "x" * 8000]),
    st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f"), max_size=60),
)
NAMES = st.one_of(
    st.sampled_from(["resp_0", "x" * 3000, "..", "%00", "a%2Fb", "%ff", "conv_"]),
    st.text("abc_-.~ %é\u2028", min_size=1, max_size=30),
)
QUERIES = st.dictionaries(
    st.sampled_from(["limit", "order", "after", "include", "include[]", "stream", "starting_after", "x"]),
    st.one_of(st.sampled_from(["-1", "0", "1", "101", "true", "asc", "9" * 40, "\x00"]), st.text(max_size=8)),
    max_size=3,
)


@pytest.fixture(
    params=[pytest.param(kind, marks=[pytest.mark.representative] if kind == "daphne" else []) for kind in KINDS]
)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClosedServer]:
    """A server that asks for keys and keeps little, so that what grows is a leak."""
    with ClosedServer(
        tmp_path / "server",
        auth="on",
        kind=str(request.param),
        responses_session_ttl=1,
        responses_max_active_sessions=50,
        responses_store_max_entries=500,
        conversations_max_entries=0,
        responses_compatibility_mode="false",
        responses_tool_timeout=5,
        log_level="warning",
    ) as running:
        yield running


@pytest.mark.each_server
def test_hostile_input_is_refused_and_changes_nothing(server: ClosedServer) -> None:
    deadline = time.monotonic() + HOSTILE_SECONDS / len(KINDS)
    warm = deadline - HOSTILE_SECONDS / len(KINDS) * (1 - WARM_UP)
    http, socket = HttpDriver(server), SocketDriver(server)
    ways = _ways_in(server, http, socket)
    rounds, before, seeded = 0, 0, SEED
    try:
        while time.monotonic() < deadline or before == 0 or rounds < len(ways):  # each has its turn, if it takes longer
            seeded = SEED + rounds * len(KINDS) + KINDS.index(server.kind)
            ways[rounds % len(ways)](seeded)
            rounds += 1
            if before == 0 and time.monotonic() > warm:
                before = server.memory_bytes()
    except BaseException:
        print(f"FUZZ_SEED={seeded}")
        raise
    finally:
        http.close()
        socket.close()
    assert not noise(server), noise(server)
    assert server.is_running
    grown = server.memory_bytes() - before
    assert grown < GROWTH_BYTES, f"{grown >> 20} MiB more than at {WARM_UP:.0%} of the time, after {rounds} rounds"


def _ways_in(server: ClosedServer, http: HttpDriver, socket: SocketDriver) -> list[Callable[[int], None]]:
    """Return what each sends one round of examples, given a seed."""
    outputs = OutputsDriver(server, http)

    def asks_for(parts: tuple[str, str, bool]) -> None:
        dialect, mode, stream = parts
        body = {"input": "call look for Rome", "stream": stream, "tools": TOOLS[:1], "store": stream}
        headers = {"Respsite-Dialect": dialect, "Respsite-Tool-Mode": mode if "wait" not in mode else "complete"}
        http.send("POST", "/responses", body, headers=headers)

    def knocks(parts: tuple[str, str, bool]) -> None:
        scheme, secret, long = parts
        said = f"{scheme}{secret.replace('KEY', server.key)}".strip()
        http.send("POST", "/responses", "x" * 300_000 if long else {}, headers={"authorization": said})

    def asks(parts: tuple[tuple[str, str], str, dict[str, str]]) -> None:
        (method, path), name, query = parts
        http.send(method, path.format(id=name), params=query)

    def posts(path: str, bodies: "st.SearchStrategy[Json]") -> Callable[[int], None]:
        return _round(strategies.mutated(bodies), lambda body: http.send("POST", path, body), examples=BODIES)

    requests = strategies.requests()
    return [
        posts("/responses", requests),
        _round(strategies.mutated(strategies.frames()), socket.send, examples=BODIES),
        posts("/conversations", strategies.conversations),
        posts("/responses/input_tokens", requests),
        _round(st.tuples(PATHS, NAMES, QUERIES), asks),
        posts("/responses/compact", requests),
        posts("/chat/completions", strategies.chats),
        posts("/completions", strategies.completions),
        posts("/decisions", strategies.decisions),
        posts("/embeddings", strategies.embeddings),
        _round(strategies.mutated(strategies.outputs), outputs.send, examples=BODIES),
        _round(strategies.mutated(strategies.words), socket.speak, examples=EXAMPLES // 3),
        _round(st.tuples(strategies.headers, strategies.headers, st.booleans()), asks_for),
        _round(st.text(max_size=200), socket.send_text),
        _round(st.tuples(SCHEMES, SECRETS, st.booleans()), knocks, examples=EXAMPLES // 3),
        _round(st.lists(_BYTES, max_size=6), lambda chunks: send_raw(server, chunks), examples=EXAMPLES // 3),
    ]


_BYTES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\n",
            b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
            b"Content-Length: 5\r\n",
            b"Content-Length: 9999999\r\n",
            b"Expect: 100-continue\r\n",
            b"Authorization: Bearer sk-x\r\n",
            b"Authorization: \xff\xfe\r\n",
            b"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.sk-x\r\n",
            b"Content-Length: -1\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Content-Type: application/json\r\n",
            b"Content-Type: multipart/form-data; boundary=a\r\n",
            b"Host: [::1\r\n",
            b"\r\n",
            b"5\r\n{}\r\n0\r\n\r\n",
            b"\x81\x85\x00\x00\x00\x00hello",
            b"\x81\x05hello",
            b"\x88\x80\x00\x00\x00\x00",
            b"\x83\x80\x00\x00\x00\x00",
            b"\x01\x82\x00\x00\x00\x00{}",
        ]
    ),
)


def _round(
    values: "st.SearchStrategy[Json]", send: Callable[[Json], None], *, examples: int = EXAMPLES
) -> Callable[[int], None]:
    def once(number: int) -> None:
        @seed(number)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(values)
        def check(value: Json) -> None:
            send(value)

        check()

    return once
