"""Progress of long work where no terminal is: lines now and then."""

from threading import Event

import pytest
from rich.console import Console

from responses_app.management import terminal

WAIT = 30.0  # seconds, for a line that comes within milliseconds


class Pipe:
    """What is written to it, and when there is something."""

    def __init__(self) -> None:
        self.text = ""
        self.has_line = Event()

    def write(self, text: str) -> int:
        self.text += text
        if "\n" in self.text:
            self.has_line.set()
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    pipe = Pipe()
    console = Console(file=pipe, markup=False, highlight=False, force_terminal=False)  # type: ignore[arg-type]
    monkeypatch.setattr(terminal, "errors", lambda: console)
    return pipe


def test_long_work_prints_lines_and_a_last_one(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "SECONDS", 0.001)
    with terminal.progress("things", 2500) as tell:
        tell(1200)
        assert pipe.has_line.wait(WAIT)
        tell(2500)
    *lines, last = pipe.text.splitlines()
    assert set(lines) <= {"… 0 of 2,500 things", "… 1,200 of 2,500 things", "… 2,500 of 2,500 things"}
    assert last == "… 2,500 of 2,500 things"


def test_work_that_fails_says_how_far_it_came(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "SECONDS", 0.001)

    def work() -> None:
        with terminal.progress("things", None) as tell:
            tell(7)
            assert pipe.has_line.wait(WAIT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert pipe.text.splitlines()[-1] == "… 7 things"


def test_short_work_prints_nothing(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "SECONDS", 1000.0)
    with terminal.progress("things", 1) as tell:
        tell(1)
    assert pipe.text == ""
