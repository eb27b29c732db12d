"""`Shares`: numbers that several processes see."""

import errno
import os
import subprocess
import sys
import tempfile

import pytest

from responses_app.web.servers.listening import Shares
from tests.kit.server import ROOT

OTHER = "import sys; from responses_app.web.servers.listening import Shares; Shares(int(sys.argv[1]), 3).say(5)"


@pytest.fixture
def table() -> Shares:
    return Shares.make(4)


@pytest.fixture
def both(table: Shares) -> list[Shares]:
    return [Shares(table.descriptor, place) for place in (1, 2)]


def test_who_holds_more_than_another_leaves_what_comes_to_it(both: list[Shares]) -> None:
    one, two = both
    one.say(0)
    assert not one.holds_more(), "the only one"
    two.say(0)
    one.say(1)
    assert one.holds_more()
    assert not two.holds_more()
    two.say(1)
    assert not one.holds_more()


def test_who_accepts_nothing_or_is_gone_counts_for_nobody(table: Shares, both: list[Shares]) -> None:
    one, two = both
    one.say(7)
    two.say(None)
    assert not one.holds_more()
    two.say(3)
    assert one.holds_more()
    table.forget(2)
    assert not one.holds_more()


def test_places_are_used_again(table: Shares) -> None:
    Shares(table.descriptor, 5).say(2)
    one = Shares(table.descriptor, 2)
    one.say(9)
    assert one.holds_more()
    table.forget(1)
    assert not one.holds_more()


def test_another_process_sees_them(table: Shares) -> None:
    own = Shares(table.descriptor, 1)
    own.say(6)
    subprocess.run(
        [sys.executable, "-c", OTHER, str(table.descriptor)], pass_fds=[table.descriptor], cwd=ROOT, check=True
    )
    assert own.holds_more()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a file in memory is Linux's")
def test_a_full_disk_is_nothing_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    table = Shares.make(4)
    table.say(1)
    assert not table.holds_more()
