"""Clients of other makers, for Python: the pages' examples, and structured output in each way that they ask for it."""

import asyncio
import contextlib
import json
import os
import shlex
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from responses_app.protocol.errors import JsonObject
from tests import pip
from tests.docs.pages import ADDRESS, PROXY, blocks, needs_a_venv_of_its_own
from tests.programs import run_program, secluded
from tests.python_clients.trip import WISHED, Stop, Trip
from tests.server import Server, free_port
from tests.waiting import eventually

HERE = Path(__file__).parent
SCRIPT_SECONDS = 180.0  # bound of one program; LiteLLM takes 5 s of a core to be imported
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # else LiteLLM asks GitHub for prices when it is imported
EXAMPLES = [code for code in blocks("python") if needs_a_venv_of_its_own(code)]
CALLING = "The user names the function find_hotel. I call it."
RETURNED = "The demo engine called find_hotel and it returned: "

each_api = pytest.mark.parametrize("api", ["responses", "chat"])


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


async def ask(python: Path, script: str, server: Server, api: str, folder: Path) -> list[JsonObject]:
    """Run a program that lies here, and return the objects that it printed, a line each."""
    lines = await run(python, HERE / script, server.base_url, api, folder=folder)
    return [json.loads(line) for line in lines]


def trips(told: list[JsonObject]) -> dict[object, Trip | Stop]:
    """Return the models that came, by the way they were asked for; each fits its schema."""
    return {
        each["way"]: (Stop if str(each["way"]).startswith("loose") else Trip).model_validate(each["output"])
        for each in told
        if "output" in each
    }


@each_api
async def test_pydantic_ai(python: Path, daphne_server: Server, api: str, tmp_path: Path) -> None:
    told = await ask(python, "with_pydantic_ai.py", daphne_server, api, tmp_path)
    came = trips(told)
    ways = ["tool", "loose tool", "native", "prompted"]
    assert list(came) == [*(name for way in ways for name in (way, f"{way}, streamed")), "beside a tool"]
    assert came["prompted"] == came["prompted, streamed"] == Trip.model_validate_json(WISHED)
    assert [each["way"] for each in told if each.get("requests", 1) != 1] == []
    assert told[-1]["calls"] == ["find_hotel", "find_hotel", "final_result", "final_result"]
    if api == "chat":  # over the Responses API it reads summaries, and asked for none
        assert told[-1]["thoughts"] == [CALLING, "The output is here. Nothing is left to be called."]


@each_api
async def test_langchain(python: Path, daphne_server: Server, api: str, tmp_path: Path) -> None:
    told = await ask(python, "with_langchain.py", daphne_server, api, tmp_path)
    came = trips(told)
    ways = ["json_schema", "json_schema, strict", "function_calling", "function_calling, strict", "json_mode"]
    assert list(came) == [name for way in ways for name in (way, f"{way}, streamed")]
    assert came["json_mode"] == Trip.model_validate_json(WISHED)
    forced = [(each["way"], each["call"], list(each["arguments"])) for each in told if "call" in each]  # type: ignore[call-overload]
    assert forced == [(choice, "find_hotel", ["city"]) for choice in ("required", "find_hotel")]
    loop = next(each for each in told if each["way"] == "loop")
    assert (loop["answer"], loop["used"]) == (f"{RETURNED}a hotel in Paris.", [True, True])
    if api == "chat":
        assert told[-1] == {"way": "others", "text": " 1 2 3", "dimensions": 256}


def promised(code: str) -> list[str]:
    """Return what an example says that it prints."""
    return [line.removeprefix("# -> ") for line in code.splitlines() if line.startswith("# -> ")]


@pytest.mark.parametrize("code", [code for code in EXAMPLES if PROXY not in code])
async def test_the_pages_examples_print_what_they_say(
    code: str, python: Path, daphne_server: Server, tmp_path: Path
) -> None:
    assert ADDRESS in code
    script = tmp_path / "example.py"
    script.write_text(code.replace(ADDRESS, f"127.0.0.1:{daphne_server.port}"))
    assert await run(python, script, folder=tmp_path) == promised(code)


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
