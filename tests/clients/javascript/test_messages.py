"""Anthropic's Messages API with Anthropic's JavaScript SDK as it is."""

from pathlib import Path

from tests.clients.javascript.node import installed, run
from tests.kit.server import Server


async def test_anthropic_node(daphne_server: Server, tmp_path: Path) -> None:
    told = await run("messages.mjs", daphne_server.url, packages=installed(), folder=tmp_path / "run")
    assert told["whole"] == [[{"type": "text", "text": "1 2 3 4 5"}], "end_turn"]
    assert told["streamed"] == [["thinking", "text"], True, True]
    assert told["signed"] is True
    assert told["called"] == ["tool_use", "forecast", {"city": "Paris"}]
    assert "rain in Paris" in str(told["answered"])
    assert "rain in Paris" in str(told["ran"])  # its runner asks for a thread first, and goes on without
    assert told["warmed"] == [[], "max_tokens"]
    assert told["counted"] is True
    assert told["models"] == [["demo"], "model"]
    assert told["refused"] == [
        ["NotFoundError", 404, "not_found_error", True],
        ["BadRequestError", 400, "invalid_request_error", True],
        ["BadRequestError", 400, "invalid_request_error", True],
    ]
