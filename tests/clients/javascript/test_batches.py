"""Batches and webhooks with OpenAI's JavaScript SDKs as they are."""

import json
import time
from pathlib import Path

import pytest

from responses_app.protocol.webhooks import message, new_secret, signed_headers
from tests.clients.javascript.node import installed, run
from tests.kit.server import Server


@pytest.mark.parametrize("package", ["openai", "openai-6"])
async def test_openai_node(daphne_server: Server, tmp_path: Path, package: str) -> None:
    at, secret = int(time.time()), new_secret(bytes(range(32)))
    told = message("response.completed", "resp_1")
    body = told.body(at)
    # As in a rotation: signed with another secret, too.
    headers = json.dumps(signed_headers(told.id, body, [new_secret(bytes(32)), secret], at=at))
    arguments = (package, daphne_server.base_url, body, headers, secret)
    said = await run("batches.mjs", *arguments, packages=installed(), folder=tmp_path / "run")
    assert said == {
        "status": "completed",
        "counts": {"total": 2, "completed": 2, "failed": 0},
        "answers": [["Paris", 200, None], ["Rome", 200, None]],
        "failed": ["failed", [["invalid_json_line", 1]]],
        "listed": True,
        "event": ["response.completed", "resp_1"],
        "refused": "InvalidWebhookSignatureError",
    }
