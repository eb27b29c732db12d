"""All tools of the server, held to one contract."""

import json
from collections.abc import AsyncIterator

import pytest

from responses_app.extensions.containers.shell import ShellTool
from responses_app.resources.vector_stores.settings import VectorStoreSettings
from responses_app.resources.vector_stores.tool import NAME, FileSearchTool, Indexer
from responses_app.tools.reading.processes import DocumentReader
from tests.contracts.adapters.conftest import OpenDatabase, migrated_sqlite, open_database, sqlite_url  # noqa: F401 - fixtures
from tests.contracts.adapters.test_vector_stores import Hands, Kept
from tests.contracts.tools import ToolCase, ToolContract
from tests.kit.image_server import image_server, image_tool
from tests.kit.mcp_servers import mcp_server, mcp_tool
from tests.kit.sandboxes import SMALL, interpreter, needs_bubblewrap
from tests.kit.search_servers import searxng
from tests.kit.web_server import WebServer, answer
from tests.unit.runs.test_server_tools import ASKED, Shell
from tests.unit.tools.mcp.test_mcp_tool import declared
from tests.unit.tools.test_browsing import browser_of


class TestToolOfTwentyLines(ToolContract):
    @pytest.fixture
    def case(self) -> ToolCase:
        tool = Shell()
        tool.idle_seconds = 60.0
        return ToolCase(tool, ASKED[0], ("python", "1+1"), "2", ("python", "1/0"))

    async def test_whatever_the_model_writes_is_answered(self, case: ToolCase) -> None:  # type: ignore[override]
        """It evaluates what it is given, and so breaks; the run says so."""
        assert (await case.call("python", "{")).text == "Error: the tool broke."


class TestMcp(ToolContract):
    @pytest.fixture
    async def case(self) -> AsyncIterator[ToolCase]:
        async with mcp_server() as server, mcp_tool() as tool:
            good, bad, slow = ("tests.add", '{"a": 2, "b": 3}'), ("tests.fail", "{}"), ("tests.wait", "{}")
            yield ToolCase(tool, declared(server)[0], good, "5", bad, slow)


class TestBrowser(ToolContract):
    @pytest.fixture
    async def case(self, web: WebServer) -> AsyncIterator[ToolCase]:
        web.pages |= {"/search": searxng([(web.url("/turtles"), "Turtles", "They have a shell.")])}
        web.pages["/turtles"] = answer(b"<title>On turtles</title><p>The shell is bone.</p>")
        tool = browser_of(web)
        good, bad = ("browser.search", '{"query": "turtles"}'), ("browser.open", '{"id": "ftp://a"}')
        yield ToolCase(tool, {"type": "web_search"}, good, "Turtles", bad)
        await tool.aclose()


class TestFileSearch(ToolContract):
    @pytest.fixture
    async def case(self, sqlite_url: str, open_database: OpenDatabase) -> AsyncIterator[ToolCase]:  # noqa: F811
        with open_database(sqlite_url) as alias:
            kept = Kept(alias, Hands(), VectorStoreSettings())
            store_id, _ = await kept.filled(project="default")
            indexer = Indexer(kept.stores, kept.files, DocumentReader(), worker="worker_1")
            tool = FileSearchTool(kept.stores, indexer)
            declared = {"type": "file_search", "vector_store_ids": [store_id]}
            yield ToolCase(tool, declared, (NAME, '{"queries": ["turtle shell"]}'), "[0:0] shell.txt", (NAME, "{}"))
            await tool.aclose()
            await kept.files.aclose()


class TestImages(ToolContract):
    @pytest.fixture
    async def case(self) -> AsyncIterator[ToolCase]:
        async with image_server() as images:
            tool = image_tool(images)
            name = "image_generation.generate"
            good, bad, slow = ((name, json.dumps({"prompt": prompt})) for prompt in ("a cat", "forbidden", "slow"))
            yield ToolCase(tool, {"type": "image_generation"}, good, "The image was made", bad, slow)
            await tool.aclose()


@needs_bubblewrap
class TestCodeInterpreter(ToolContract):
    @pytest.fixture
    async def case(self) -> AsyncIterator[ToolCase]:
        tool = interpreter()
        declared = {"type": "code_interpreter", "container": {"type": "auto"}}
        endless = ("python", "while True: print('x' * 1000)")
        slow = ("python", "import time; time.sleep(60)")
        yield ToolCase(tool, declared, ("python", "print(2**100)"), str(2**100), endless, slow)
        await tool.aclose()


@needs_bubblewrap
class TestShell(ToolContract):
    @pytest.fixture
    async def case(self) -> AsyncIterator[ToolCase]:
        code = interpreter()
        declared = {"type": "shell", "environment": {"type": "container_auto"}}
        good, endless, slow = (
            ("shell.exec", json.dumps({"commands": [command]}))
            for command in ("echo $((2 ** 10))", "yes", "echo begun; sleep 60")
        )
        ends = ("shell_call_output", "completed", "incomplete")
        yield ToolCase(ShellTool(code, SMALL), declared, good, "1024", endless, slow, ends=ends)
        await code.aclose()
