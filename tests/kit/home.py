"""The home of somebody who has used no agent, for tests that import it: the fixture `home`."""

import os
from pathlib import Path

import pytest

from tests.unit.test_configure import PLACES


@pytest.fixture(name="home")
def empty_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder that is $HOME; no variable says that an agent's files lie elsewhere."""
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)
    # Where the agents are installed is by the home of who runs the tests.
    monkeypatch.setenv("XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"))
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("ENGINE", "demo")
    return home
