"""What is seen of the server is in `files/`, byte for byte; `python -m tests.inprocess.goldens --write` writes it."""

from pathlib import Path

import pytest

from tests.inprocess.goldens.making import FILES, make

NAMES = sorted(path.name for path in FILES.iterdir())
MAX_BYTES = 1_750_000  # of all together
IF_MEANT = "if it is meant, write them again: python -m tests.inprocess.goldens --write"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, made now."""
    folder = tmp_path_factory.mktemp("goldens")
    make(folder)
    return folder


def test_there_is_a_file_for_each(made: Path) -> None:
    assert sorted(path.name for path in made.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_seen_otherwise(name: str, made: Path) -> None:
    now, before = ((folder / name).read_text().splitlines() for folder in (made, FILES))
    different = [
        f"line {number}:\n  now    {new[:2000]}\n  before {old[:2000]}"
        for number, (new, old) in enumerate(zip(now, before, strict=False), 1)
        if new != old
    ]
    assert different[:5] == [], f"tests/inprocess/goldens/files/{name}; {IF_MEANT}"
    assert (made / name).read_bytes() == (FILES / name).read_bytes(), f"tests/inprocess/goldens/files/{name}"


def test_they_stay_small() -> None:
    assert sum(path.stat().st_size for path in FILES.iterdir()) < MAX_BYTES
