"""OpenAI's own JavaScript clients, as they are, against daphne: each turn slow, and under heartbeats."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from tests.clients.javascript.node import installed, run, run_script
from tests.kit.balancer import Balancer
from tests.kit.fixtures import module_server
from tests.kit.scripts import Entry, as_history, journal
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.kit.wiretap import Wiretap
from tests.project.test_readme import ADDRESS, blocks

MODEL = "test-model"
BEGIN = "<|channel|>final<|message|>"
CALL = "<|channel|>analysis<|message|>I have to ask.<|end|><|start|>assistant<|channel|>commentary to=functions.{} "
JSON_FOLLOWS = "<|constrain|>json<|message|>"
ARGUMENTS = '{"city": "Paris"}'
# No encoder makes these tokens of the arguments: only who keeps what was sampled can give them back.
SPELLED_OUT = [token for letter in ARGUMENTS for token in encode_harmony(letter)]
WEATHER = [*encode_harmony(CALL.format("get_weather") + JSON_FOLLOWS), *SPELLED_OUT, *encode_harmony("<|call|>")]
SLOWLY = {"chunk_tokens": 6, "delay": 0.05}  # seconds before each chunk
PING_SECONDS = 0.02
ENOUGH_BYTES = 8000  # of a stream: some 20 deltas
SCRIPT: list[Entry] = [
    {"when": "[weather]", "tokens": WEATHER, **SLOWLY},
    {"when": "18 °C in Paris", "say": f"{BEGIN}It is 18 °C there.<|return|>", **SLOWLY, "chunk_tokens": 2},
    {"when": "[Thanks]", "say": f"{BEGIN}Sleep well.<|return|>"},
    {"when": "[night]", "say": f"{CALL.format('transfer_to_Night_desk')}{JSON_FOLLOWS}{{}}<|call|>"},
    {"when": '"assistant"', "say": f"{BEGIN}The night desk is.<|return|>"},
]


server = module_server(
    "javascript", script=SCRIPT, model_name=MODEL, journal=True, responses_ping_interval_seconds=PING_SECONDS
)


@pytest.fixture
async def tap(server: Server) -> AsyncIterator[Wiretap]:
    """What a test's client and the server say to each other."""
    async with Wiretap(server.port) as tapped:
        yield tapped


@pytest.fixture(scope="session")
def packages() -> Path:
    """The installed clients."""
    return installed()


@pytest.mark.parametrize("way", ["whole", "streamed"])
@pytest.mark.parametrize("transport", ["http", "websocket"])
async def test_the_agents_sdk(
    server: Server, tap: Wiretap, packages: Path, tmp_path: Path, transport: str, way: str
) -> None:
    begin = len(journal(server))
    told = await run("agents.mjs", tap.base_url, transport, way, packages=packages, folder=tmp_path)
    assert told["answers"] == ["It is 18 °C there.", "Sleep well.", "The night desk is."]
    assert (told["cities"], told["last_agent"]) == (["Paris"], "Night desk")
    if way == "streamed":
        names = ["reasoning_item_created", "tool_called", "tool_output", "message_output_created"]
        assert told["happened"] == names
        assert len(told["deltas"]) > 1  # type: ignore[arg-type]
        assert "".join(told["deltas"]) == "It is 18 °C there."  # type: ignore[arg-type]

    call, answer, thanks, *_ = journal(server)[begin:]
    history = as_history(call)
    assert history[-1 - len(SPELLED_OUT) : -1] == SPELLED_OUT
    assert answer["prompt_tokens"][: len(history)] == history
    assert "It is 18 °C there.<|end|>" in decode_tokens(thanks["prompt_tokens"])
    if transport == "websocket":
        assert tap.requests == ["GET /v1/responses HTTP/1.1"]
        assert tap.pings() > 0
    else:
        assert set(tap.requests) == {"POST /v1/responses HTTP/1.1"}
        assert tap.answered(": ping") == (way == "streamed")


@pytest.mark.parametrize("package", ["openai", "openai-6"])
async def test_openai_nodes_helpers(tap: Wiretap, packages: Path, tmp_path: Path, package: str) -> None:
    told = await run("stream.mjs", package, tap.base_url, packages=packages, folder=tmp_path)
    call = told["call"]
    assert isinstance(call, dict)
    assert (call["name"], call["arguments"], call["parsed_arguments"]) == ("get_weather", ARGUMENTS, {"city": "Paris"})
    assert told["parsed"] == {"city": "Paris"}
    assert [told[each] for each in ("text", "snapshot", "again", "spoken")] == ["It is 18 °C there."] * 4
    assert tap.answered(": ping")
    assert tap.pings() > 0
    assert "response.ping" not in told["types"]  # type: ignore[operator]


@pytest.mark.parametrize("code", blocks("js"))
async def test_the_readmes_examples_print_what_they_say(
    code: str, daphne_server: Server, packages: Path, tmp_path: Path
) -> None:
    assert ADDRESS in code
    script = tmp_path / "readme.mjs"
    script.write_text(code.replace(ADDRESS, f"127.0.0.1:{daphne_server.port}"))
    done = await run_script(script, packages=packages, folder=tmp_path / "run")
    assert done.exit_code == 0, done.complaints
    promised = [line.removeprefix("// -> ") for line in code.splitlines() if line.startswith("// -> ")]
    assert promised
    assert [line for line in done.printed.splitlines() if line.strip()] == promised


@pytest.fixture
def dying(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Two workers on one database, which count slowly; the first is to die."""
    options = json.dumps({"tokens_per_second": 40, "chunk_tokens": 1})
    workers = [Server(tmp_path / "pair", engine_options=options, worker_lease_seconds=1) for _ in range(2)]
    workers[1].log = tmp_path / "other.log"
    with workers[0] as first, workers[1] as second:
        yield first, second


async def test_the_readmes_loop_goes_on_where_its_worker_dies(
    dying: tuple[Server, Server], packages: Path, tmp_path: Path
) -> None:
    loop = next(code for code in blocks("js") if "starting_after" in code)
    script = tmp_path / "loop.mjs"
    async with Balancer(dying) as balancer:
        script.write_text(loop.replace(ADDRESS, f"127.0.0.1:{balancer.port}").replace("count to 5", "count to 60"))
        running = asyncio.create_task(run_script(script, packages=packages, folder=tmp_path / "run"))
        await eventually(lambda: balancer.answered > ENOUGH_BYTES)
        await asyncio.to_thread(dying[0].kill)
        done = await running
    assert done.exit_code == 0, done.complaints
    assert done.printed.split() == [str(number) for number in range(1, 61)]
