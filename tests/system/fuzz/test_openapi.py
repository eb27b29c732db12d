"""schemathesis over the OpenAPI document of a server that asks for keys: it answers as the document says it does.

Only this finds a status or a field that the document does not name.

It runs as a program of its own, seeded with FUZZ_SEED. What it finds it prints as curl commands.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx

from tests.kit.closed import ClosedServer, bearer
from tests.kit.server import ROOT
from tests.system.fuzz.driver import noise
from tests.system.fuzz.shares import OPENAPI_SECONDS, SEED

CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance"),
    *("response_schema_conformance", "ignored_auth", "unsupported_method", "use_after_free"),
)
SLACK_SECONDS = 120  # for a start and a last request on a busy machine
WAITS = {"input": "call look for Rome", "background": True, "tools": [{"type": "function", "name": "look"}]}


def test_the_api_does_what_its_document_says(tmp_path: Path) -> None:
    with ClosedServer(tmp_path / "server", auth="on", log_level="warning", responses_tool_timeout=30) as server:
        done = run(server, ids(server))
        assert done.returncode == 0, f"FUZZ_SEED={SEED}\n{done.stdout[-20_000:]}\n{done.stderr[-5_000:]}"
        assert "Fuzzing" in done.stdout
        assert " passed" in done.stdout
        assert not noise(server), noise(server)
        assert server.is_running


def run(server: ClosedServer, ids: dict[str, list[str]]) -> "subprocess.CompletedProcess[str]":
    """Let schemathesis try a server, in the server's folder: it leaves files where it runs."""
    flags = {
        "--header": f"Authorization: Bearer {server.key}",
        "--checks": ",".join(CHECKS),
        "--max-time": str(max(1, round(OPENAPI_SECONDS))),
        "--seed": str(SEED),
        "--generation-database": "none",
    }
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--no-color"]
    environ = {"SCHEMATHESIS_HOOKS": "tests.system.fuzz.real_ids", "FUZZ_IDS": json.dumps(ids)}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [*command, *(word for pair in flags.items() for word in pair)],
        cwd=server.folder,
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=OPENAPI_SECONDS + SLACK_SECONDS,
        check=False,
    )


def ids(server: ClosedServer) -> dict[str, list[str]]:
    """Make some things, of which one response waits for its client, and return their ids by parameters."""
    with httpx.Client(base_url=f"{server.base_url}/", headers=bearer(server.key), verify=False, timeout=30) as client:
        post = lambda path, **body: client.post(path, json=body).raise_for_status().json()  # noqa: E731
        conversation = post("conversations", items=[{"role": "user", "content": "Hello"}])["id"]
        said = post("responses", input="Hello", conversation=conversation)
        waiting = client.post("responses", json=WAITS, headers={"Respsite-Tool-Mode": "wait"}).raise_for_status().json()
        form = {"files": {"file": ("a.txt", b"text")}, "data": {"purpose": "user_data"}}
        uploaded = client.post("files", **form).raise_for_status().json()
        items = client.get(f"conversations/{conversation}/items").json()["data"]
    return {
        "response_id": [said["id"], waiting["id"]],
        "conversation_id": [conversation],
        "item_id": [item["id"] for item in items],
        "model": [said["model"]],
        "file_id": [uploaded["id"]],
    }
