"""Fixtures of the sandbox's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.tools.sandbox.nobody import copied


@pytest.fixture(scope="session")
def readable_copy() -> Iterator[Path]:
    """Return a folder with the package, which any user may read."""
    yield from copied()
