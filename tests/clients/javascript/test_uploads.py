"""OpenAI's JavaScript SDK uploads a file in parts, as it is."""

from pathlib import Path
from typing import Any

from tests.clients.javascript.node import installed, run
from tests.kit.server import Server


async def test_openai_node(daphne_server: Server, tmp_path: Path) -> None:
    told: dict[str, Any] = await run(
        "upload.mjs", daphne_server.base_url, packages=installed(), folder=tmp_path / "run"
    )
    assert (told["upload"]["status"], told["done"]["status"], told["cancelled"]["status"]) == (
        *("pending", "completed", "cancelled"),
    )
    assert [part["object"] for part in told["parts"]] == ["upload.part"] * 2
    assert told["content"] == "The soup is 4 euros."
    assert (told["done"]["file"]["filename"], told["done"]["file"]["bytes"]) == ("menu.txt", 20)
