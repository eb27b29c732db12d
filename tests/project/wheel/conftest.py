"""`make test-wheel` installs the wheel, over the network; `make test` only builds it."""

import os
from pathlib import Path

import pytest

from tests.project.wheel.building import build_wheel

collect_ignore = [] if os.environ.get("WHEEL") else ["test_installed.py"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))
