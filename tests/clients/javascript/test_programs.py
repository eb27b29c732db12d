"""OpenAI's Agents SDK for JavaScript and a model that calls its functions from a program."""

from pathlib import Path

import pytest

from tests.clients.javascript.node import installed, run
from tests.kit.fixtures import module_server
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.scripts import Entry
from tests.kit.server import Server

pytestmark = needs_bubblewrap

MODEL = "test-model"
PROGRAM = """
first = call_tool("stock", {"name": "a"})
print(first, call_tools([("stock", {"name": "b"}), ("stock", {"name": "c"})]))
"""
SCRIPT: list[Entry] = [
    {"when": "[stock]", "say": f"<|channel|>commentary to=program code<|message|>{PROGRAM}<|call|>"},
    {
        "when": "1 of a ['1 of b', '1 of c']",
        "say": "<|channel|>final<|message|>There are three.<|return|>",
    },
]

server = module_server("javascript_programs", script=SCRIPT, model_name=MODEL, sandbox="bubblewrap")


@pytest.fixture(scope="session")
def packages() -> Path:
    """The installed clients."""
    return installed()


@pytest.mark.parametrize("way", ["whole", "streamed"])
@pytest.mark.parametrize("transport", ["http", "websocket"])
async def test_a_program_calls_the_functions_of_an_agent(
    server: Server, packages: Path, tmp_path: Path, transport: str, way: str
) -> None:
    told = await run("programs.mjs", server.base_url, transport, way, packages=packages, folder=tmp_path)
    assert told["answer"] == "There are three."
    assert sorted(told["asked"]) == ["a", "b", "c"]  # type: ignore[type-var]
    kinds = [[kind for kind in kinds if kind != "reasoning"] for kinds in told["kinds"]]  # type: ignore[union-attr]
    assert [len(each) for each in kinds] == [2, 2, 2]
