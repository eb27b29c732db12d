"""Clients of other makers, for Python: over both APIs, streamed and not, and the examples of their pages."""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from responses_app.protocol.errors import JsonObject
from tests.clients.python_clients.trip import WISHED, Stop, Trip
from tests.kit import pip
from tests.kit.programs import run_program, secluded
from tests.kit.server import Server, free_port
from tests.kit.waiting import eventually
from tests.project.docs.pages import ADDRESS, PROXY, blocks, needs_a_venv_of_its_own

HERE = Path(__file__).parent
SCRIPT_SECONDS = 400.0  # bound of one process; what all clients import takes 15 s of a core
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # else LiteLLM asks GitHub for prices when it is imported
EXAMPLES = [code for code in blocks("python") if needs_a_venv_of_its_own(code)]
ALONE = [code for code in EXAMPLES if PROXY not in code]
CALLING = "The user names the function find_hotel. I call it."
RETURNED = "The demo engine called find_hotel and it returned: "

COUNTED = "1 2 3 4 5"
APIS = ("responses", "chat")
WAYS = ("whole", "streamed")
CLIENTS = ("with_langchain.py", "with_litellm.py", "with_pydantic_ai.py")


@dataclass(frozen=True)
class Ran:
    """What a program printed, and the traceback of how it failed, if it did."""

    printed: list[str]
    failed: str

    def said(self) -> list[str]:
        """Return the lines of a program that did not fail."""
        assert not self.failed, self.failed
        return self.printed


@pytest.fixture(scope="session")
def python() -> Path:
    """The Python that has the clients."""
    return pip.installed(HERE / "requirements.txt")


async def run(*command: str | Path, folder: Path, **variables: str) -> list[str]:
    """Run a program, and return the lines that it printed."""
    environ = secluded(folder, **QUIET, **variables)
    done = await run_program(*command, cwd=folder, environ=environ, seconds=SCRIPT_SECONDS)
    assert done.exit_code == 0, done.complaints
    return done.printed.splitlines()


@pytest.fixture(scope="module")
def ran(python: Path, daphne_server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """All programs of this module, run in one process: by the name of a client's, or the code of an example."""
    folder = tmp_path_factory.mktemp("clients")
    shutil.copy(HERE / "trip.py", folder)
    programs: dict[str, list[str]] = {name: [str(HERE / name), daphne_server.base_url] for name in CLIENTS}
    for number, code in enumerate(ALONE):
        script = folder / f"example_{number}.py"
        script.write_text(code.replace(ADDRESS, f"127.0.0.1:{daphne_server.port}"))
        programs[code] = [str(script)]
    told = asyncio.run(run(python, HERE / "several.py", *map(json.dumps, programs.values()), folder=folder))
    return {name: Ran(**json.loads(line)) for name, line in zip(programs, told, strict=True)}


def told_by(ran: dict[str, Ran], client: str, api: str) -> list[JsonObject]:
    """Return the objects that a client's program printed, a line each, of this API."""
    told: list[JsonObject] = [json.loads(line) for line in ran[client].said()]
    return [each for each in told if each.get("api", "others") == api]


def of(told: list[JsonObject], way: str) -> list[JsonObject]:
    """Return what came in this way, without its name."""
    return [
        {name: value for name, value in each.items() if name not in ("way", "api")}
        for each in told
        if each["way"] == way
    ]


def trips(told: list[JsonObject]) -> dict[object, Trip | Stop]:
    """Return the models that came, by the way they were asked for; each fits its schema."""
    return {
        each["way"]: (Stop if str(each["way"]).startswith("loose") else Trip).model_validate(each["output"])
        for each in told
        if "output" in each
    }


@pytest.mark.parametrize("api", APIS)
def test_pydantic_ai(ran: dict[str, Ran], api: str) -> None:
    told = told_by(ran, "with_pydantic_ai.py", api)
    came = trips(told)
    ways = ["tool", "loose tool", "native", "prompted"]
    assert list(came) == [*(name for way in ways for name in (way, f"{way}, streamed")), "beside a tool"]
    assert came["prompted"] == came["prompted, streamed"] == Trip.model_validate_json(WISHED)
    assert [each["way"] for each in told if each.get("requests", 1) != 1] == []
    assert of(told, "loop") == [{"how": way, "texts": [COUNTED, f"{RETURNED}a hotel in Paris."]} for way in WAYS]
    assert told[-1]["calls"] == ["find_hotel", "find_hotel", "final_result", "final_result"]
    if api == "chat":  # over the Responses API it reads summaries, and asked for none
        assert told[-1]["thoughts"] == [CALLING, "The output is here. Nothing is left to be called."]


@pytest.mark.parametrize("api", APIS)
def test_langchain(ran: dict[str, Ran], api: str) -> None:
    told = told_by(ran, "with_langchain.py", api)
    came = trips(told)
    ways = ["json_schema", "json_schema, strict", "function_calling", "function_calling, strict", "json_mode"]
    assert list(came) == [name for way in ways for name in (way, f"{way}, streamed")]
    assert came["json_mode"] == Trip.model_validate_json(WISHED)
    forced = [(each["way"], each["call"], list(each["arguments"])) for each in told if "call" in each]  # type: ignore[call-overload]
    assert forced == [(choice, "find_hotel", ["city"]) for choice in ("required", "find_hotel")]
    went = {"text": COUNTED, "answer": f"{RETURNED}a hotel in Paris.", "used": [True, True]}
    assert of(told, "loop") == [{"how": way, **went} for way in WAYS]
    assert of(told, "too long") == [{"how": way} for way in WAYS]


@pytest.mark.parametrize("api", APIS)
def test_litellm(ran: dict[str, Ran], api: str) -> None:
    told = told_by(ran, "with_litellm.py", api)
    texts = of(told, "text")
    thoughts = [each.pop("thought") for each in texts]
    assert texts == [{"how": way, "text": COUNTED, "used": True} for way in WAYS]
    # Over the Responses API it reads summaries, and asked for none.
    assert thoughts == ["The user wants me to count." if api == "chat" else None] * 2
    went = {"called": "find_hotel", "answer": f"{RETURNED}a hotel in Paris."}
    assert of(told, "loop") == [{"how": way, **went} for way in WAYS]
    assert of(told, "too long") == [{"how": way} for way in WAYS]


def test_completions_embeddings_and_models(ran: dict[str, Ran]) -> None:
    text, dimensions = " 1 2 3", {"dimensions": 256}
    assert of(told_by(ran, "with_langchain.py", "others"), "others") == [{"texts": [text] * 2, **dimensions}]
    assert of(told_by(ran, "with_pydantic_ai.py", "others"), "others") == [dimensions]
    litellm = told_by(ran, "with_litellm.py", "others")
    assert of(litellm, "completions") == [{"whole": text, "streamed": text}]
    assert of(litellm, "others") == [{**dimensions, "models": ["demo", "hashing-256"]}]


def promised(code: str) -> list[str]:
    """Return what an example says that it prints."""
    return [line.removeprefix("# -> ") for line in code.splitlines() if line.startswith("# -> ")]


@pytest.mark.parametrize("code", ALONE)
def test_the_pages_examples_print_what_they_say(code: str, ran: dict[str, Ran]) -> None:
    assert ADDRESS in code
    assert ran[code].said() == promised(code)


@contextlib.asynccontextmanager
async def litellm_proxy(python: Path, folder: Path, *, config: str, commands: str) -> AsyncIterator[tuple[str, str]]:
    """Run LiteLLM's proxy as its page says; what is yielded is where it listens, and its key."""
    export, command = commands.splitlines()
    key = export.removeprefix("export LITELLM_MASTER_KEY=")
    program, *arguments = shlex.split(command)
    port = str(free_port())
    (folder / "litellm.yaml").write_text(config)
    log = folder / "proxy.log"
    with log.open("wb") as output:
        proxy = await asyncio.create_subprocess_exec(
            *(python, python.with_name(program), *(port if each == "4000" else each for each in arguments)),
            cwd=folder,
            env=secluded(folder, LITELLM_MASTER_KEY=key, **QUIET),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        ready = "Application startup complete"
        await eventually(lambda: proxy.returncode is not None or ready in log.read_text(), timeout=SCRIPT_SECONDS)
        assert proxy.returncode is None, log.read_text()
        yield f"127.0.0.1:{port}", key
    finally:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(proxy.pid, signal.SIGKILL)
        await proxy.wait()


async def test_litellms_proxy_in_front(python: Path, daphne_server: Server, tmp_path: Path) -> None:
    (config,) = [block for block in blocks("yaml") if "litellm_params" in block]
    (commands,) = [block for block in blocks("sh") if "litellm --config" in block]
    (code,) = [code for code in EXAMPLES if PROXY in code]
    config = config.replace(ADDRESS, f"127.0.0.1:{daphne_server.port}")
    async with litellm_proxy(python, tmp_path, config=config, commands=commands) as (address, key):
        script = tmp_path / "example.py"
        script.write_text(code.replace(PROXY, address))
        assert await run(python, script, folder=tmp_path, LITELLM_MASTER_KEY=key) == promised(code)
