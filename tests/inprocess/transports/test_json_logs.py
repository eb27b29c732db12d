"""LOG_FORMAT=json on real servers: every line is an object with ids, and none has what anybody wrote."""

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.kit.clients import Socket, http_client
from tests.kit.closed import bearer
from tests.kit.inprocess import ClosedServer
from tests.kit.waiting import eventually

SECRET = "xylophone"
DONE = "completed input="


def lines(server: ClosedServer) -> list[dict[str, Any]]:
    """Return what was logged so far."""
    return [json.loads(line) for line in server.output.splitlines() if line.startswith("{")]


async def test_lines_have_ids_and_no_content(tmp_path: Path) -> None:
    settings = {"auth": "on", "log_format": "json", "log_level": "debug"}
    async with AsyncExitStack() as clients:
        server = clients.enter_context(ClosedServer(tmp_path, **settings))
        key = server.new_key("--project", "team")
        client = await clients.enter_async_context(http_client(server))
        client.headers.update(bearer(key))
        made = await client.post(
            "/responses",
            json={"input": SECRET, "instructions": SECRET, "metadata": {SECRET: SECRET}},
            headers={"x-request-id": "req-of-mine"},
        )
        assert made.status_code == 200
        async with await Socket.open(server.ws_url, additional_headers=bearer(key)) as socket:
            response = await socket.ask(SECRET)
            await socket.send({"type": SECRET})
            await socket.error()
        for body in ({"input": SECRET, "model": SECRET}, {"input": {SECRET: 1}}, {"input": "x", "temperature": SECRET}):
            await client.post("/responses", json=body)
        await client.post("/responses", content=f"{{{SECRET}")
        await eventually(lambda: sum(DONE in line["message"] for line in lines(server)) == 2)
        posted, asked = (line for line in lines(server) if DONE in line["message"])
        assert posted["response_id"] == made.json()["id"]
        assert (posted["request_id"], posted["project"], posted["transport"]) == ("req-of-mine", "team", "json")
        assert posted["output_tokens"] == made.json()["usage"]["output_tokens"]
        assert asked["response_id"] == response["id"]
        assert asked["connection_id"].startswith("ws-")
        assert "request_id" not in asked
        assert posted["key_id"] == asked["key_id"]
        assert key not in server.output
        assert SECRET not in server.output
    assert [line for line in server.output.splitlines() if not line.startswith("{")] == []
