"""A start of the server loads what every server needs; what one kind of request needs is loaded with the first one."""

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest

from responses_app.protocol.fields import ClientModel, validate
from tests.kit.server import ROOT, clean_environ

# Packages of others that every server needs. Whoever adds one adds to each start, and to the memory of each worker.
AT_A_START = {
    *("django", "asgiref", "sqlparse", "channels", "axes", "dj_database_url"),
    *("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "orjson", "regex"),
    *("tiktoken", "tiktoken_ext", "cryptography"),
}
# Of the others, those that cost most.
NOT_AT_A_START = {
    *("mcp", "aiohttp", "httpx", "requests", "yarl", "jsonschema", "lark"),  # tools, and what tools are asked with
    *("numpy", "PIL", "lxml", "docx", "pypdf", "pyarrow", "sandlock", "rich"),  # files, pictures, code
    *("opentelemetry", "prometheus_client", "psycopg", "redis", "jwt", "mozilla_django_oidc"),  # where configured
    *("torch", "transformers", "tokenizers", "xgrammar", "vllm", "openai", "openai_harmony"),
}
STARTED = """
import gc, json, sys
import respsite.asgi
from responses_app.protocol.fields import ClientModel

def models(of):
    for each in of.__subclasses__():
        yield each
        yield from models(each)

print(json.dumps({
    "packages": sorted({name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names),
    "modules": sorted(sys.modules),
    "models": sum(1 for _ in models(ClientModel)),
    "built": [each.__name__ for each in models(ClientModel) if each.__pydantic_complete__],
    "collects": gc.isenabled(),
    "frozen": gc.get_freeze_count(),
}))
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a new process has once it has imported the application."""
    environ = clean_environ(DATA_DIR=str(tmp_path_factory.mktemp("data")))
    done = subprocess.run(
        [sys.executable, "-c", STARTED], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_start_loads_no_package_that_only_some_requests_need(started: dict[str, Any]) -> None:
    loaded = {name for name in started["packages"] if not name.startswith("_")}
    assert loaded & NOT_AT_A_START == set()
    ours = {"respsite", "responses_app", "engine"}
    assert ours < loaded
    # `cython_runtime` is made by a compiled module, and is no package.
    assert loaded - ours - AT_A_START - {"cython_runtime"} == set()


def test_a_start_loads_no_command_line(started: dict[str, Any]) -> None:
    assert [name for name in started["modules"] if name.startswith("responses_app.command_line")] == []


def test_a_start_builds_no_model_of_a_body(started: dict[str, Any]) -> None:
    assert started["models"] > 150
    assert started["built"] == []


def test_what_a_start_has_loaded_is_no_work_for_the_collector(started: dict[str, Any]) -> None:
    assert started["collects"]
    assert started["frozen"] > 100_000


def test_a_model_may_be_first_used_by_many_threads_at_once() -> None:
    threads = 8
    for _ in range(20):

        class Inner(ClientModel):
            kind: Literal["a"] = "a"

        class Outer(ClientModel):
            parts: list[Inner]
            size: int

        assert not Outer.__pydantic_complete__
        at_once = threading.Barrier(threads)

        def first_use(size: int, model: type[Outer] = Outer, barrier: threading.Barrier = at_once) -> Outer:
            barrier.wait(60)
            return validate(model, {"parts": [{"kind": "a"}], "size": size})

        with ThreadPoolExecutor(threads) as pool:
            assert [each.size for each in pool.map(first_use, range(threads))] == list(range(threads))
