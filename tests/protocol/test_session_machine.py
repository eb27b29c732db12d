"""`WebSocketSession` under any order of creates, ends and refusals."""

from collections import Counter, defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from responses_app.protocol.errors import overloaded
from responses_app.protocol.resources import Status
from responses_app.protocol.session import (
    CancelRuns,
    Close,
    Command,
    Create,
)
from tests.protocol.sessions import LIMITS, codes, create, link, session, started


class Lanes(RuleBasedStateMachine):
    """Any order of creates, ends and refusals."""

    def __init__(self) -> None:
        super().__init__()
        self.connection = session()
        self.sent = 0
        self.accepted: dict[str | None, list[int]] = defaultdict(list)  # in the order they were asked for
        self.begun: dict[str | None, list[int]] = defaultdict(list)
        self.refusals: Counter[int] = Counter()
        self.running: dict[str | None, Create] = {}
        self.closed = False

    def follow(self, commands: list[Command]) -> None:
        assert not (self.closed and commands), "nothing after the close"
        for begun in started(commands):
            assert begun.lane not in self.running, "one at a time on a lane"
            self.running[begun.lane] = begun
            self.begun[begun.lane].append(begun.fields["n"])  # type: ignore[arg-type]
        if CancelRuns() in commands:
            self.running.clear()
        self.closed = self.closed or Close(1000) in commands

    @rule(lane=st.sampled_from([None, "a", "b", "c", "d", "e"]), size=st.integers(1, 100))
    def ask(self, lane: str | None, size: int) -> None:
        self.sent += 1
        commands = self.connection.receive(*create(lane, size=size, n=self.sent))
        self.follow(commands)
        if self.closed:
            return
        if codes(commands):
            assert not started(commands)
            self.refusals[self.sent] += 1
        else:
            self.accepted[lane].append(self.sent)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), status=st.sampled_from([Status.COMPLETED, Status.FAILED, Status.CANCELLED]))
    def end(self, data: st.DataObject, status: Status) -> None:
        lane = data.draw(st.sampled_from(list(self.running)))
        begun = self.running.pop(lane)
        known = link(f"resp_{begun.fields['n']}") if status is Status.COMPLETED else None
        self.follow(self.connection.ended(begun, status, known))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        begun = self.running.pop(data.draw(st.sampled_from(list(self.running))))
        commands = self.connection.refused(begun, overloaded("No.", retry_after=1))
        assert codes(commands)[0][1] == "server_is_overloaded"
        self.follow(commands)

    @rule(age=st.sampled_from([10, 50, 60, 70]))
    def time_passes(self, age: float) -> None:
        """Time may go in any order here: nothing worse than an early tick comes of it."""
        if self.sent > 15:
            self.follow(self.connection.tick(1000 + age))

    @invariant()
    def lanes_are_first_in_first_out(self) -> None:
        for lane, begun in self.begun.items():
            assert begun == self.accepted[lane][: len(begun)]

    @invariant()
    def never_too_many(self) -> None:
        assert self.connection.in_flight == len(self.running) <= LIMITS.max_in_flight

    def teardown(self) -> None:
        """Whatever was accepted is started in the end, once, unless the connection's life is over."""
        while self.running:
            begun = self.running.pop(next(iter(self.running)))
            self.follow(self.connection.ended(begun, Status.COMPLETED, None))
        if not self.closed:
            assert {lane: n for lane, n in self.begun.items() if n} == {
                lane: n for lane, n in self.accepted.items() if n
            }
        started_ones = [n for begun in self.begun.values() for n in begun]
        assert len(set(started_ones)) == len(started_ones)
        assert not set(started_ones) & set(self.refusals)


TestLanesInAnyOrder = Lanes.TestCase
TestLanesInAnyOrder.settings = settings(deadline=None, max_examples=40, stateful_step_count=40)
