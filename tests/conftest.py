"""What all tests share: the environment they start from, and servers that are started once."""

import functools
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from math import ceil
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, settings

# Where a shell has started these tests in the background it ignores Ctrl-C for them, and so for their servers.
signal.signal(signal.SIGINT, signal.default_int_handler)

# httpx waits 5 s for an answer where nobody says otherwise: a busy machine may take longer. All functions share this.
httpx._config.DEFAULT_TIMEOUT_CONFIG.read = 60.0
# Each client would read all certificates, for 40 ms of CPU, and hardly any test speaks TLS.
httpx._transports.default.create_ssl_context = functools.cache(httpx.create_ssl_context)  # type: ignore[attr-defined]

# Before Django's settings are read: tests never touch the data of the checkout they run in.
os.environ["DATA_DIR"] = tempfile.mkdtemp(prefix="respsite-tests-")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "respsite.settings")

pytest_plugins = [
    f"tests.kit.{name}" for name in ("failure_reports", "at_once", "durations", "limits", "capabilities", "extensions")
]

from tests.kit.databases import DATABASES, choose_database
from tests.kit.limits import SYSTEM_SECONDS
from tests.kit.redis_server import private_redis_server, redis_of_the_module, shared_redis_server  # noqa: F401 - fixtures
from tests.kit.server import KINDS, Server
from tests.quarantine import QUARANTINED

# How long an example takes says more of a busy machine, and of tables that are made once, than of what is tested.
settings.register_profile("busy", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# What takes 20 seconds or more begins, the longest first, what computes beside what waits: else one process is left
# with it at the end.
LONG = """
    system/agents/test_task system/supervisor/test_sandboxes system/retention/test_marker
    system/agents/test_rollouts system/trainers/test_trainers system/takeover/test_kills
    system/supervisor/test_under_load system/playground/test_versions system/supervisor/test_processes
    system/takeover/test_tools system/playground/test_chats_page system/playground/test_story
    system/agents/test_configured system/playground/test_setup system/takeover/test_lost_leases
    system/playground/test_hour system/takeover/test_effects system/test_bench system/takeover/test_rollouts
    system/takeover/test_crash inprocess/roles/test_matrix inprocess/audit/test_audit
    contracts/adapters/test_version_0012
    wire/watch/test_rollout_pages system/sign_on/test_real project/test_architecture wire/transports/test_openapi
    system/supervisor/test_sandbox_hosts system/cluster/test_smoke
    wire/transports/test_bodies wire/test_serve clients/python_clients/test_python_clients
    system/takeover/test_hung_database system/takeover/test_embedding system/supervisor/test_watching
    system/playground/test_files inprocess/goldens/test_goldens
    contracts/adapters/test_old_version contracts/adapters/test_store_database wire/transports/test_waiting
    system/test_hostile_texts unit/tools/sandbox/test_resting project/docs/test_site
    wire/test_everywhere wire/transports/test_limits unit/tools/mcp/test_old_sse
    wire/watch/test_page wire/transports/test_metrics wire/conformance/test_resuming_sdk system/supervisor/test_bursts
    contracts/adapters/test_retention clients/test_keys system/playground/test_page clients/javascript/test_javascript
    clients/codex/test_codex unit/tools/sandbox/test_escapes wire/transports/test_websocket_load system/fuzz/test_fuzz
    system/fuzz/test_openapi
""".split()

SYSTEM = Path(__file__).parent / "system"
IN_PROCESS = Path(__file__).parent / "inprocess"

collect_ignore = [] if find_spec("vllm") else ["system/vllm"]  # those run in the venv of `make test-vllm`


@pytest.fixture(scope="session")
def demo_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Server]]:
    """Servers with the demo engine, by their kind and that of their database, as far as any was needed."""
    servers: dict[tuple[str, str], Server] = {}
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture(scope="module", params=KINDS)
def demo_server(
    request: pytest.FixtureRequest,
    database: str,
    demo_servers: dict[tuple[str, str], Server],
    tmp_path_factory: pytest.TempPathFactory,
) -> Server:
    """A server with the demo engine, of each kind; shared, so tests leave it as they find it."""
    key = request.param, database
    if key not in demo_servers:
        demo_servers[key] = Server(tmp_path_factory.mktemp("demo"), kind=request.param).start()
    return demo_servers[key]


@pytest.fixture(scope="session")
def daphne_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo engine under daphne alone, for what does not depend on the server's kind."""
    with Server(tmp_path_factory.mktemp("demo")) as server:
        yield server


@pytest.fixture(scope="module")
def database(request: pytest.FixtureRequest) -> str:
    """The kind of database that the test's servers have: for servers of a module, which begin anew with another."""
    return str(getattr(request, "param", DATABASES[0]))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat tests whose rows matter on each database."""
    if metafunc.definition.get_closest_marker("each_database"):
        if "database" not in metafunc.fixturenames:
            metafunc.fixturenames.append("database")
        metafunc.parametrize("database", DATABASES, indirect=True, scope="module")


@pytest.hookimpl(tryfirst=True)  # before any fixture begins
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let servers that the test makes have a database of its kind."""
    marked = item.get_closest_marker("each_database") is not None
    choose_database(str(_parameters(item)["database"]) if marked else DATABASES[0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for a server of a test's own."""
    return tmp_path / "server"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark where tests are, and what they need: by that the commands choose.

    `make test` runs of `tests/system` only the representatives; `make test-fast` nothing that needs PostgreSQL.
    """
    if str(item.path).startswith(f"{SYSTEM}{os.sep}"):  # `parents` of 12,000 paths take a second
        item.add_marker("system")
    if any("postgres" in name for name in getattr(item, "fixturenames", ())) or any(
        isinstance(value, str) and "postgres" in value for value in _parameters(item).values()
    ):
        item.add_marker("postgres")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--examples`."""
    parser.addoption("--examples", type=float, default=1.0, metavar="PART", help="try this part of all examples")


def _try_fewer(items: Sequence[pytest.Item], part: float) -> None:
    """Let each property of Hypothesis try a part of its examples."""
    for test in {item.function for item in items if isinstance(item, pytest.Function)}:
        if getattr(test, "is_hypothesis_test", False):
            whole = test._hypothesis_internal_use_settings
            test._hypothesis_internal_use_settings = settings(whole, max_examples=ceil(whole.max_examples * part))


@pytest.hookimpl(trylast=True)  # behind pytest-randomly, which mixes them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order them, leave out what one kind of server is enough for, and mark what is quarantined.

    The long ones begin; the others go folder by folder, so servers of a folder end when it has been gone through.
    """
    here = Path(__file__).parent
    begin = {here / f"{name}.py": place for place, name in enumerate(LONG)}
    folders = {folder: place for place, folder in enumerate(dict.fromkeys(item.path.parent for item in items))}
    files = {path: place for place, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(key=lambda item: (begin.get(item.path, len(begin)), folders[item.path.parent], files[item.path]))
    config.hook.pytest_deselected(items=[item for item in items if _is_spared(item)])
    items[:] = [item for item in items if not _is_spared(item)]
    if config.option.examples < 1:
        _try_fewer(items, config.option.examples)
    for item in items:
        _check_markers(item)
        if item.path in begin and SYSTEM not in item.path.parents and item.get_closest_marker("limit") is None:
            item.add_marker(pytest.mark.limit(SYSTEM_SECONDS))
        reason = QUARANTINED.get(item.nodeid) or QUARANTINED.get(item.nodeid.partition("[")[0])
        if reason:
            item.add_marker(pytest.mark.xfail(reason=f"quarantined: {reason}", strict=False))


def _check_markers(item: pytest.Item) -> None:
    """Refuse markers that have no effect where they stand."""
    if item.get_closest_marker("representative") and SYSTEM not in item.path.parents:
        raise pytest.UsageError(f"{item.nodeid} is a representative, but not in tests/system")
    if item.get_closest_marker("each_server") and IN_PROCESS in item.path.parents:
        raise pytest.UsageError(f"{item.nodeid} is for each server, but in process there is none")


def _is_spared(item: pytest.Item) -> bool:
    return "uvicorn" in _parameters(item).values() and item.get_closest_marker("each_server") is None


def _parameters(item: pytest.Item) -> Mapping[str, object]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
