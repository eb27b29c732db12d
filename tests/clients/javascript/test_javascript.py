"""OpenAI's and Anthropic's own JavaScript clients, and Vercel's, as they are."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from responses_app.resources.webhooks.messages import message, new_secret, signed_headers
from tests.clients.javascript.node import installed, run, run_script
from tests.kit.balancer import Balancer
from tests.kit.fixtures import module_server
from tests.kit.output_items import output_items
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


@pytest.mark.parametrize("package", ["openai", "openai-6"])
async def test_openai_node(daphne_server: Server, tmp_path: Path, package: str) -> None:
    at, secret = int(time.time()), new_secret(bytes(range(32)))
    told = message("response.completed", "resp_1")
    body = told.body(at)
    # As in a rotation: signed with another secret, too.
    headers = json.dumps(signed_headers(told.id, body, [new_secret(bytes(32)), secret], at=at))
    arguments = (package, daphne_server.base_url, body, headers, secret)
    said = await run("batches.mjs", *arguments, packages=installed(), folder=tmp_path / "run")
    assert said == {
        "status": "completed",
        "counts": {"total": 2, "completed": 2, "failed": 0},
        "answers": [["Paris", 200, None], ["Rome", 200, None]],
        "failed": ["failed", [["invalid_json_line", 1]]],
        "listed": True,
        "event": ["response.completed", "resp_1"],
        "refused": "InvalidWebhookSignatureError",
    }


RETURNED = "The demo engine called {} and it returned: {}."
COUNTING = "The user wants me to count."
TOOLS = ["generate_chart", "get_system_health", "get_weather", "query_database"]


@pytest.mark.parametrize("package", ["openai", "openai-6"])
async def test_chats_of_openai_node(daphne_server: Server, tmp_path: Path, package: str) -> None:
    told = await run("chat.mjs", package, daphne_server.base_url, packages=installed(), folder=tmp_path / "run")
    message = told["whole"]
    assert isinstance(message, dict)
    assert (message["content"], message["reasoning"], message["reasoning_content"]) == ("1 2 3 4 5", COUNTING, COUNTING)
    assert (told["streamed"], told["reasoning"]) == ("1 2 3 4 5", COUNTING)
    assert told["deltas"] > 1  # type: ignore[operator]
    assert told["used"] == [told["used"][0]] * 2  # type: ignore[index]
    assert told["loops"] == [RETURNED.format("forecast", "rain in Paris")] * 2
    assert told["parsed"] == {"city": "Paris", "days": 3}
    assert told["stored"] == [True, "count to 2", {"from": "nobody"}, "1 2", True]
    assert told["texts"] == [" 1 2 3"] * 2
    assert told["dimensions"] == [[256, 256], [64, 64]]
    assert (told["models"], told["retrieved"]) == (["demo", "hashing-256"], "demo")


async def test_openais_cases_for_gpt_oss(daphne_server: Server, tmp_path: Path) -> None:
    """What its compatibility test looks at: a tool was called by its schema, and thoughts are where clients look."""
    script = Path(__file__).with_name("compatible.mjs")
    done = await run_script(script, daphne_server.base_url, packages=installed(), folder=tmp_path / "run")
    assert done.exit_code == 0, done.complaints
    told = [json.loads(line) for line in done.printed.splitlines()]
    cases = [(name, api, way) for api in ("chat", "responses") for name in TOOLS for way in ("streamed", "whole")]
    assert sorted((each["name"], each["api"], each["way"]) for each in told) == sorted(cases)
    required = {
        "generate_chart": {"data": [[1]], "chart_type": "line"},
        "get_system_health": {},
        "get_weather": {"location": "example"},
        "query_database": {"table": "example", "columns": ["example"]},
    }
    for each in told:
        assert each["called"] == [required[each["name"]]]
        assert each["answer"] == RETURNED.format(each["name"], '{"status":"ok"}')
        if each["way"] == "streamed":
            assert each["seen"]["deltas"] > 1
            assert each["seen"]["done"] == (2 if each["api"] == "responses" else 0)
        else:
            fields = 2 if each["api"] == "chat" else 1  # `reasoning` and `reasoning_content` say the same
            thoughts = [f"The user names the function {each['name']}. I call it."] * fields
            assert each["thoughts"] == [thoughts, ["The output is here. Nothing is left to be called."] * fields]


async def test_anthropic_node(daphne_server: Server, tmp_path: Path) -> None:
    told = await run("messages.mjs", daphne_server.url, packages=installed(), folder=tmp_path / "run")
    assert told["whole"] == [[{"type": "text", "text": "1 2 3 4 5"}], "end_turn"]
    assert told["streamed"] == [["thinking", "text"], True, True]
    assert told["signed"] is True
    assert told["called"] == ["tool_use", "forecast", {"city": "Paris"}]
    assert "rain in Paris" in str(told["answered"])
    assert "rain in Paris" in str(told["ran"])  # its runner asks for a thread first, and goes on without
    assert told["warmed"] == [[], "max_tokens"]
    assert told["counted"] is True
    assert told["models"] == [["demo"], "model"]
    assert told["refused"] == [
        ["NotFoundError", 404, "not_found_error", True],
        ["BadRequestError", 400, "invalid_request_error", True],
        ["BadRequestError", 400, "invalid_request_error", True],
    ]


async def test_the_ai_sdk_takes_items_of_every_type(tmp_path: Path) -> None:
    # It knows no programs, and no image that could not be made: its `result` is null, as OpenAI's types have it.
    items = [item for item in output_items() if item["type"] != "program" and item.get("result", "") is not None]
    assert len({item["type"] for item in items}) == 12
    written = tmp_path / "items.json"
    written.write_text(json.dumps(items))
    told = await run("schemas.mjs", str(written), packages=installed(), folder=tmp_path / "run")
    assert told == {"refused": [], "read": sum(1 if item.get("status") == "in_progress" else 2 for item in items)}


APIS = ("responses", "chat")
VERCEL = [f"{api} {way}" for api in APIS for way in ("generateObject", "streamObject", "Output.object")]
OPENAI = [f"{package} {way}" for package in ("openai", "openai-6") for way in ("parse", "stream")]
AGENTS = [f"agents{transport}{way}" for transport in ("", ", websocket") for way in ("", ", streamed")]


async def test_the_sdks_of_vercel_and_openai(daphne_server: Server, tmp_path: Path) -> None:
    script = Path(__file__).with_name("structured.mjs")
    done = await run_script(script, daphne_server.base_url, packages=installed(), folder=tmp_path / "run")
    assert done.exit_code == 0, done.complaints
    told = [json.loads(line) for line in done.printed.splitlines()]
    assert sorted(each["way"] for each in told if "output" in each) == sorted([*VERCEL, *OPENAI, *AGENTS])
    assert [each["called"] for each in told if "called" in each] == [1, 1]

    forced = [each for each in told if each["way"] == "toolChoice"]
    assert len(forced) == 4 * len(APIS)
    for each in forced:
        ((name, arguments, invalid),) = each["calls"]
        wanted = ["find_train"] if isinstance(each["choice"], dict) else ["find_hotel", "find_train"]
        assert name in wanted
        assert (list(arguments), invalid) == (["city"], False)

    loops = [each for each in told if each["way"] in [f"{api} loop" for api in APIS]]
    text = "The demo engine called find_hotel and it returned: a bed in Paris."
    assert [(each["text"], each["steps"], each["used"] > 0) for each in loops] == [(text, 2, True)] * 2 * len(APIS)
    said = {each["way"]: each["texts"] for each in told if "texts" in each}
    assert [said.pop(f"{api} text") for api in APIS] == [["1 2 3 4 5"] * 2] * 2
    ((counted, counted_streamed),) = said.values()
    assert counted == counted_streamed == " 1 2 3"
    assert [each["dimensions"] for each in told if each["way"] == "beside"] == [[256, 256]]
