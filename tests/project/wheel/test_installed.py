"""The wheel in an empty environment, in an empty folder, without the repository: `make test-wheel`."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from responses_app import __version__
from tests.kit.server import ROOT, clean_environ, free_port
from tests.project.wheel.building import wheel_of
from tests.system.extensions.test_package import PACKAGE

INSTALL_SECONDS, START_SECONDS = 900.0, 90.0


@pytest.fixture(scope="session")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program `respsite` of a fresh environment that has the wheel and what it needs."""
    venv = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    install = [venv / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pinned = ["--require-hashes", "--requirement", ROOT / "constraints.txt"]
    subprocess.run([*install, *pinned], check=True, timeout=INSTALL_SECONDS)
    subprocess.run([*install, "--no-deps", wheel], check=True, timeout=INSTALL_SECONDS)
    return venv / "bin" / "respsite"


def environ(**settings: str) -> dict[str, str]:
    """Return an environment that knows no setting of ours and no repository."""
    found = clean_environ(**settings)
    for name in ("PYTHONPATH", "DJANGO_SETTINGS_MODULE"):
        found.pop(name, None)
    return found


def said(program: Path, *words: str, folder: Path, **settings: str) -> str:
    """Run a command and return its output."""
    done = subprocess.run(
        [program, *words], cwd=folder, env=environ(**settings), capture_output=True, text=True, timeout=START_SECONDS,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def served(program: Path, folder: Path, *flags: str, **settings: str) -> Iterator[str]:
    """Run `respsite serve` in a folder; yield where it listens."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "serve", "--port", str(port), *flags], cwd=folder, env=environ(**settings), stdout=log, stderr=log
        )
    try:
        began = time.monotonic()
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() - began < START_SECONDS, (folder / "log").read_text()
            with suppress(httpx.TransportError):
                if httpx.get(f"{url}/ready").status_code == 200:
                    break
            time.sleep(0.1)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=START_SECONDS)


def test_it_is_installed_whole(program: Path, tmp_path: Path) -> None:
    assert said(program, "--version", folder=tmp_path) == f"respsite {__version__}\n"
    where = "import respsite, os; print(os.path.dirname(respsite.__file__), respsite.__version__)"
    found = subprocess.check_output([program.parent / "python", "-c", where], cwd=tmp_path, env=environ(), text=True)
    assert str(program.parents[1]) in found
    assert str(ROOT) not in found


def test_it_serves_in_an_empty_folder(program: Path, tmp_path: Path) -> None:
    """Migrates, keeps what it keeps in ./var, answers, and has the admin with its static files."""
    with served(program, tmp_path) as url:
        assert (tmp_path / "var" / "respsite.sqlite3").exists()
        answer = httpx.post(f"{url}/v1/responses", json={"input": "count to 3"}, timeout=30).json()
        assert answer["output"][-1]["content"][0]["text"] == "1 2 3"
        assert said(program, "chat", "count to 4", "--url", url, folder=tmp_path) == "1 2 3 4\n"
        for path in ("/", "/admin/login/"):
            page = httpx.get(url + path, headers={"accept": "text/html"})
            assert page.status_code == 200
            static = set(re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text))
            assert static
            assert {each: httpx.get(url + each).status_code for each in static} == dict.fromkeys(static, 200)
        if (ROOT / "responses_app" / "docs_site" / "index.html").exists():  # `make docs` has been run
            assert httpx.get(f"{url}/docs/", follow_redirects=True).status_code == 200
        port = url.rpartition(":")[2]
        told = json.loads(said(program, "doctor", "--json", "--seconds", "60", folder=tmp_path, PORT=port))
        assert [each for each in told["findings"] if each["level"] == "problem"] == []


def test_another_package_is_loaded_and_none_is(program: Path, tmp_path: Path) -> None:
    wheel = wheel_of(shutil.copytree(PACKAGE, tmp_path / "source"), tmp_path)
    command = [program.parent / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(command, check=True, timeout=INSTALL_SECONDS)
    for chosen, last in (("default,acme-notes", ["acme_notes"]), ("none", [])):
        with served(program, tmp_path, EXTENSIONS=chosen) as url:
            assert httpx.get(f"{url}/health").json()["extensions"][-1:] == last
            assert httpx.get(f"{url}/v1/notes").status_code == (200 if last else 404)
            answer = httpx.post(f"{url}/v1/responses", json={"input": "count to 3"}, timeout=30).json()
            assert answer["output"][-1]["content"][0]["text"] == "1 2 3"


def test_it_serves_with_workers(program: Path, tmp_path: Path) -> None:
    with served(program, tmp_path, "--workers", "2") as url:
        assert httpx.post(f"{url}/v1/responses", json={"input": "Hello"}, timeout=30).status_code == 200
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_djangos_commands_work_without_the_repository(program: Path, tmp_path: Path) -> None:
    said(program, "manage", "migrate", "--verbosity", "0", folder=tmp_path)
    assert said(program, "manage", "create_key", folder=tmp_path).startswith("sk-")
    password = {"DJANGO_SUPERUSER_PASSWORD": os.urandom(12).hex()}
    words = ("createsuperuser", "--noinput", "--username", "admin", "--email", "admin@example.com")
    said(program, "manage", *words, folder=tmp_path, **password)
