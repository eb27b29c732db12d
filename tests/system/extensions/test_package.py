"""Another's package, built as a wheel and installed beside the server: what an extension brings is there.

Only a real package and real processes show that entry points, migrations, forked workers and commands find it.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.kit.served import Supervised
from tests.kit.server import ROOT, free_port
from tests.kit.waiting import looks
from tests.project.wheel.building import wheel_of

PACKAGE = Path(__file__).parent / "acme_notes_package"
CALL = '<|channel|>commentary to=notes.add <|constrain|>json<|message|>{"text": "by a model"}<|call|>'
SCRIPT = [{"when": "Note it", "say": CALL}, {"say": "<|channel|>final<|message|>Noted.<|return|>"}]
TOOL = {"type": "mcp", "server_label": "notes", "require_approval": "never"}
INSTALL_SECONDS = 120.0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, as pip installs it."""
    folder = tmp_path_factory.mktemp("installed")
    wheel = wheel_of(shutil.copytree(PACKAGE, folder / "source"), folder)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder / "site"]
    subprocess.run([*pip, wheel], check=True, timeout=INSTALL_SECONDS)
    return folder / "site"


@pytest.fixture(scope="module")
def server(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """Two workers that have loaded it."""
    folder = tmp_path_factory.mktemp("server")
    served = Supervised(
        folder,
        workers=2,
        is_forked=False,
        engine="scripted",
        script=SCRIPT,
        extensions="default,acme-notes",
        notes_max=3,
    )
    served.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{installed}"
    served._handed_on = {"PYTHONPATH": f"{served._handed_on['PYTHONPATH']}{os.pathsep}{installed}"}
    with served:
        yield served


def said(server: Supervised, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `respsite` with the server's settings, or others."""
    command = [sys.executable, "-m", "respsite", *words]
    environ = {**server.environ, **settings}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False)


def test_its_endpoints_tools_and_duties_are_served(server: Supervised) -> None:
    assert httpx.get(f"{server.url}/health").json()["extensions"][-1] == "acme_notes"
    assert "/v1/notes" in httpx.get(f"{server.url}/openapi.json").json()["paths"]
    refused = server.post("/notes", text="", colour="red")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "text")
    assert server.post("/notes", text="a").json() == {"data": ["a"]}
    answer = server.post("/responses", input="Note it", tools=[TOOL]).json()
    calls = [item for item in answer["output"] if item["type"] == "mcp_call"]
    assert [(call["name"], call["output"]) for call in calls] == [("add", "2 notes")]
    for text in "bcd":
        server.post("/notes", text=text)
    for _ in looks(60):
        if httpx.get(f"{server.base_url}/notes").json() == {"data": ["b", "c", "d"]}:
            break


def test_its_commands_and_looks_are_there(server: Supervised) -> None:
    assert said(server, "notes").stdout.startswith("POST /v1/notes")
    found = json.loads(said(server, "doctor", "--json", "--seconds", "60").stdout)["findings"]
    assert {each["text"] for each in found if each["subject"] == "notes"} == {"at most 3 are kept"}
    assert said(server, "manage", "makemigrations", "acme_notes", "--check", "--dry-run").returncode == 0
    counted = said(server, "manage", "forget", "--project", "default").stdout
    assert "notes" in counted


def test_it_is_told_where_it_is_not_loaded(server: Supervised) -> None:
    left = json.loads(said(server, "doctor", "--json", "--seconds", "60", EXTENSIONS="none").stdout)["findings"]
    assert "acme-notes: installed, and not loaded" in {each["text"] for each in left}
    unknown = said(server, "doctor", EXTENSIONS="default,acme-nots")
    assert "EXTENSIONS names 'acme-nots', which is not installed" in unknown.stdout + unknown.stderr
    twice = said(server, "serve", MCP_SERVERS='{"notes": "https://a.example/mcp"}', PORT=str(free_port()))
    assert twice.returncode
    assert "brings the MCP server 'notes', and there is another of this label" in twice.stdout + twice.stderr
