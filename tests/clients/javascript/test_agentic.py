"""OpenAI's SDKs for JavaScript and what the server runs for agents: searches for tools, commands, several agents."""

from pathlib import Path

from tests.clients.javascript.node import installed, run
from tests.kit.fixtures import module_server
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.server import Server

pytestmark = needs_bubblewrap

server = module_server("javascript_agentic", sandbox="bubblewrap")


async def test_tools_are_found_commands_run_and_agents_answer(server: Server, tmp_path: Path) -> None:
    told = await run("agentic.mjs", server.base_url, packages=installed(), folder=tmp_path)
    assert told["asked"] == ["c42"]
    assert "it returned: two of c42." in str(told["found"])
    assert "it returned: 1+2+3." in str(told["shell"])
    assert all(part in str(told["text"]) for part in ("/root/berlin: 1 2 3", "/root/rome: 1 2"))
    assert (told["spoke"], told["last"]) == (["/root", "/root/berlin", "/root/rome"], "response.completed")
    assert told["refused"] == [400, "missing_beta_header"]
