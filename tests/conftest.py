"""What all tests share: the environment they start from, and servers that are started once."""

import functools
import os
import signal
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
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

pytest_plugins = ["tests.kit.at_once"]

from tests.kit.redis_server import private_redis_server, redis_of_the_module, shared_redis_server  # noqa: F401 - fixtures
from tests.kit.server import KINDS, Server
from tests.quarantine import QUARANTINED

# How long an example takes says more of a busy machine, and of tables that are made once, than of what is tested.
settings.register_profile("busy", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# What takes 20 seconds or more begins, the longest first, what computes beside what waits: else one process is left
# with it at the end.
LONG = """
    clients/agents/test_task servers/supervisor/test_sandboxes servers/retention/test_marker
    clients/agents/test_rollouts clients/trainers/test_trainers servers/transports/test_takeover
    servers/supervisor/test_under_load servers/playground/test_versions servers/supervisor/test_processes
    servers/transports/test_hung_database servers/playground/test_chats_page servers/playground/test_story
    clients/configure/test_configure servers/playground/test_setup servers/transports/test_engine_doors
    servers/playground/test_hour servers/transports/test_rollout_laws project/test_bench
    servers/transports/test_search_by_meaning servers/transports/test_rate_limits servers/roles/test_matrix
    servers/audit/test_audit contracts/adapters/test_version_0012 servers/watch/test_rollout_pages
    servers/sign_on/test_real project/test_architecture servers/transports/test_openapi servers/test_webhooks
    servers/roles/test_taken_away servers/supervisor/test_sandbox_hosts servers/cluster/test_smoke
    servers/transports/test_bodies servers/test_serve clients/python_clients/test_python_clients
    servers/transports/test_effects servers/transports/test_lost_leases servers/supervisor/test_watching
    servers/playground/test_files servers/playground/test_chats_looks servers/goldens/test_goldens
    contracts/adapters/test_old_version contracts/adapters/test_store_database servers/transports/test_waiting
    servers/test_hostile_texts unit/test_conf unit/tools/sandbox/test_resting project/docs/test_site
    servers/transports/test_forget unit/tools/test_everywhere servers/playground/test_talking
    servers/transports/test_limits unit/tools/mcp/test_old_sse servers/watch/test_page servers/transports/test_metrics
    servers/conformance/test_resuming_sdk servers/supervisor/test_bursts contracts/adapters/test_retention
    unit/auth/test_clients servers/transports/test_lifetime servers/playground/test_page
    servers/transports/test_steering clients/javascript/test_javascript clients/codex/test_codex
    unit/tools/sandbox/test_escapes servers/transports/test_websocket_load servers/fuzz/test_fuzz
    servers/fuzz/test_openapi
""".split()

collect_ignore = [] if find_spec("vllm") else ["servers/vllm"]  # those run in the venv of `make test-vllm`


@pytest.fixture(scope="session", params=KINDS)
def demo_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the demo engine, of each kind; shared, so tests leave it as they find it."""
    with Server(tmp_path_factory.mktemp(f"demo-{request.param}"), kind=request.param) as server:
        yield server


@pytest.fixture(scope="session")
def daphne_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo engine under daphne alone, for what does not depend on the server's kind."""
    with Server(tmp_path_factory.mktemp("demo")) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for a server of a test's own."""
    return tmp_path / "server"


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
    spared = [item for item in items if item.get_closest_marker("any_server") and _is_under_uvicorn(item)]
    config.hook.pytest_deselected(items=spared)
    items[:] = [item for item in items if item not in spared]
    for item in items:
        reason = QUARANTINED.get(item.nodeid) or QUARANTINED.get(item.nodeid.partition("[")[0])
        if reason:
            item.add_marker(pytest.mark.xfail(reason=f"quarantined: {reason}", strict=False))


def _is_under_uvicorn(item: pytest.Item) -> bool:
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return "uvicorn" in parameters.values()
