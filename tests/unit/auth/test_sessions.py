"""Whoever watches a session hears of its end, and of nothing else, whatever tells it."""

import pytest

from responses_app.auth import door
from responses_app.kit.errors import StoreError
from responses_app.protocol.api_keys import Caller, SessionPass
from responses_app.protocol.errors import ApiError
from tests.kit.waiting import eventually

CALLER = Caller(session="s", project="p")


class Staff:
    """Gives answers one after the other, then that the session is in; an exception is raised."""

    def __init__(self, *answers: Caller | Exception | None) -> None:
        self.answers = [*answers]

    async def caller(self, given: SessionPass) -> Caller | None:
        assert (given.key, given.project) == ("s", "p")
        answer = self.answers.pop(0) if self.answers else CALLER
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("end", [None, ApiError("This user may not choose it.", status=403)], ids=["out", "project"])
@pytest.mark.parametrize("before", [CALLER, StoreError("away"), ValueError("a bug")], ids=["in", "away", "broken"])
async def test_its_end_is_told_once_and_an_outage_is_none(
    monkeypatch: pytest.MonkeyPatch, before: Caller | Exception, end: Exception | None
) -> None:
    monkeypatch.setattr(door, "CHECK_SECONDS", 0.001)
    staff, told = Staff(before, end), list[str]()
    watch = door.SessionWatch(staff)
    watch.watch(CALLER, lambda: told.append("gone"))()  # nobody is told whose watch has ended
    watch.watch(CALLER, lambda: told.append("there"))
    await eventually(lambda: bool(told))
    assert (told, staff.answers) == (["there"], [])
    await watch.aclose()
