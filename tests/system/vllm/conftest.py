"""Real vLLMs for the tests here, each started when the first test needs it and kept to the end of the session.

Those that are idle use no CPU, and 1 GB each. All of them speak `transcripts.SCRIPT`. Where several processes run the
tests, `sharing` says which has which vLLM.
"""

import asyncio
import inspect
import json
import os
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from openai import OpenAI

from engine.backends.base import BaseEngine
from engine.backends.vllm.local import VllmEngine
from engine.backends.vllm.server import VllmServerEngine
from tests.contracts.engine import StartedEngine
from tests.kit.sdk import MODEL, sdk_of
from tests.kit.server import Server
from tests.system.vllm import chat_servers, seeded_weights
from tests.system.vllm.chat_servers import LlamaFront, QwenServer
from tests.system.vllm.engines import EngineUnderTest, LocalEngine, ServerEngine
from tests.system.vllm.fronts import LoadingServer
from tests.system.vllm.script import SCRIPT_VARIABLE, write_script
from tests.system.vllm.server import API_KEY, ENGINE_OPTIONS, MODEL_FOLDER, SERVED_MODEL, START_SECONDS, VllmServer
from tests.system.vllm.sharing import ORDER, OneVllmEach, vllm_of
from tests.system.vllm.transcripts import SCRIPT

# For every vLLM that is started from here, in this process or in another.
os.environ[SCRIPT_VARIABLE] = str(Path(tempfile.mkdtemp(prefix="respsite-vllm-")) / "script.json")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; the dummy model needs a hundredth
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # else each of them takes the first core
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What is compiled is the rank of a log probability: 13 s for each engine core, at the first request that asks for one.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
write_script(Path(os.environ[SCRIPT_VARIABLE]), SCRIPT)
os.environ[chat_servers.SCRIPT] = chat_servers.write_script(Path(os.environ[SCRIPT_VARIABLE]).with_name("chat.json"))

UNCLOSED = "Unclosed context <zmq"  # vLLM leaves it to the garbage collector
FROM_LIBRARIES = ("DeprecationWarning", "FutureWarning", "UserWarning", "SyntaxWarning", "ImportWarning")


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Let the last collection find the contexts that vLLM does not close; outside of tests no mark holds."""
    warnings.filterwarnings("ignore", UNCLOSED, ResourceWarning)


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist nobody asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneVllmEach:
    """Have each vLLM started by one process."""
    return OneVllmEach(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run these tests on one event loop, where the engine in this process lives, and let vLLM's libraries warn.

    Those of one vLLM come together, in their order.
    """
    items.sort(key=lambda item: ORDER.index(vllm_of(item.nodeid)))
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.filterwarnings(f"ignore:{UNCLOSED}:ResourceWarning"))
        for category in FROM_LIBRARIES:
            item.add_marker(pytest.mark.filterwarnings(f"ignore::{category}"))
        if inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with VllmServer(tmp_path_factory.mktemp("vllm")) as server:
        yield server


@pytest.fixture(scope="session")
def seeded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A vLLM server process whose weights can be changed: see `seeded_weights`."""
    flags = {
        name.replace("_", "-"): value if isinstance(value, str) else json.dumps(value)
        for name, value in seeded_weights.OPTIONS.items()
    }
    with VllmServer(tmp_path_factory.mktemp("vllm-seeded"), flags=flags, VLLM_SERVER_DEV_MODE="1") as server:
        yield server


@asynccontextmanager
async def started(engine: BaseEngine) -> AsyncIterator[StartedEngine]:
    async with asyncio.timeout(START_SECONDS):
        info = await engine.start()
    try:
        yield StartedEngine(engine, info)
    finally:
        await engine.aclose()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def local_engine() -> AsyncIterator[StartedEngine]:
    """vLLM in this process. The last test of `test_local_contract.py` closes it."""
    options = {**ENGINE_OPTIONS, "disable_log_stats": False}  # for its metrics
    async with started(VllmEngine(model=str(MODEL_FOLDER), options=options)) as engine:
        yield engine


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server_engine(vllm_server: VllmServer) -> AsyncIterator[StartedEngine]:
    options = {"urls": [vllm_server.url], "api_key": API_KEY}
    async with started(VllmServerEngine(model=SERVED_MODEL, options=options)) as engine:
        yield engine


@pytest.fixture(scope="session")
def front_of_server(vllm_server: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(
        tmp_path_factory.mktemp("vllm-server"),
        engine="vllm-server",
        engine_url=vllm_server.url,
        engine_api_key=API_KEY,
        model=SERVED_MODEL,
        model_name=MODEL,
    ) as server:
        yield server


@pytest.fixture(scope="session")
def front_that_loads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadingServer]:
    """Daphne with ENGINE=vllm, from its start on."""
    with LoadingServer(tmp_path_factory.mktemp("vllm-local")) as server:
        yield server


@pytest.fixture(scope="session")
def front_with_vllm(front_that_loads: LoadingServer) -> Server:
    front_that_loads.wait_until("/ready", 200)
    return front_that_loads


@pytest.fixture(scope="session")
def qwen_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QwenServer]:
    with QwenServer(tmp_path_factory.mktemp("vllm-qwen")) as server:
        yield server


@pytest.fixture(scope="session")
def front_of_qwen(qwen_server: QwenServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("front-of-qwen"), **qwen_server.settings) as server:
        yield server


@pytest.fixture(scope="session")
def front_with_llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with LlamaFront(tmp_path_factory.mktemp("vllm-llama")) as server:
        server.wait_until("/ready", 200)
        yield server


@pytest.fixture(params=["front_of_qwen", "front_with_llama"])
def family_front(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture(params=["front_with_vllm", "front_of_server"])
def front(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def client(front: Server) -> Iterator[OpenAI]:
    with sdk_of(front) as client:
        yield client


@pytest.fixture(params=["local", "server"])
def vllm(request: pytest.FixtureRequest) -> EngineUnderTest:
    """Each of the two, with a look at what it does."""
    if request.param == "local":
        return LocalEngine(request.getfixturevalue("local_engine"))
    return ServerEngine(request.getfixturevalue("server_engine"), request.getfixturevalue("vllm_server"))
