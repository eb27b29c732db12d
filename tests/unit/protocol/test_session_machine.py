"""`WebSocketSession` under any order of creates, ends and refusals."""

from collections import Counter, defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from responses_app.protocol.errors import ApiError, invalid_request, overloaded, rate_limited, server_error
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.session.session import CancelRuns, Close, Command
from responses_app.protocol.session.steering import Create, Reply, Stop
from tests.unit.protocol.sessions import LIMITS, codes, create, frames, link, session, started

CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "status": "completed"}

PROBLEMS = (overloaded("No.", retry_after=1), rate_limited("Full."), server_error("req_1"), invalid_request("No."))
ENDS = (
    (Status.COMPLETED, None),
    (Status.INCOMPLETE, None),
    (Status.CANCELLED, None),
    (Status.FAILED, None),
    *((Status.FAILED, problem) for problem in PROBLEMS),
)


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
        self.latest: dict[str | None, str] = {}  # the response that each lane remembers
        self.names: dict[str | None, str] = {}  # of the responses that run and were named
        self.said: set[str] = set()  # steering that was accepted, and neither applied nor given back
        self.cut = self.closed = False
        self.named = 0
        self.every: set[str] = set()

    def follow(self, commands: list[Command]) -> None:
        assert not (self.closed and commands), "nothing after the close"
        for begun in started(commands):
            assert not self.cut, "nothing starts after the end"
            assert begun.lane not in self.running, "one at a time on a lane"
            self.running[begun.lane] = begun
            if not begun.is_successor:
                self.begun[begun.lane].append(begun.fields["n"])  # type: ignore[arg-type]
            assert {steer.id for steer in begun.steers} <= self.said, "it is applied once"
        if CancelRuns() in commands:
            assert self.running
            assert not self.cut, "once"
            assert not codes(commands), "no error frame while something has yet to end"
            self.cut = True
        for frame in frames(commands):
            steer_id = str(frame.get("steer", {}).get("id"))  # type: ignore[attr-defined]
            if frame["type"] == "response.steer.accepted":
                self.said.add(steer_id)
            elif frame["type"] == "response.steer.failed" and steer_id != "None":
                self.said.remove(steer_id)
            elif frame["type"] == "response.steer.pending":
                assert steer_id in self.said
        if any(isinstance(command, Close) for command in commands):
            assert not self.running, "nothing is cut without a word"
            self.closed = True

    @rule(lane=st.sampled_from([None, "a", "b", "c", "d", "e"]), size=st.integers(1, 100), data=st.data())
    def ask(self, lane: str | None, size: int, data: st.DataObject) -> None:
        self.sent += 1
        parent = data.draw(st.sampled_from([None, "resp_unknown", *sorted(self.latest.values())]))
        named = {} if parent is None else {"previous_response_id": parent}
        commands = self.connection.receive(*create(lane, size=size, n=self.sent, **named))
        self.follow(commands)
        if self.closed:
            return
        if codes(commands):
            assert not started(commands)
            self.refusals[self.sent] += 1
        else:
            self.accepted[lane].append(self.sent)

    @precondition(lambda self: set(self.running) - set(self.names))
    @rule(data=st.data())
    def name(self, data: st.DataObject) -> None:
        """A create has its response; what was said for it is applied by that."""
        lane = data.draw(st.sampled_from(sorted(set(self.running) - set(self.names), key=str)))
        begun = self.running[lane]
        self.named += 1
        self.names[lane] = f"resp_named_{self.named}"
        self.said -= {steer.id for steer in begun.steers}
        self.connection.started(begun, self.names[lane])

    @precondition(lambda self: self.names and not self.closed)
    @rule(data=st.data())
    def steer(self, data: st.DataObject) -> None:
        lane = data.draw(st.sampled_from(sorted(self.names, key=str)))
        frame = {"type": "response.steer", "previous_response_id": self.names[lane], "input": "x"}
        commands = self.connection.receive(frame, 10)
        assert {type(command) for command in commands} <= {Reply, Stop}
        self.follow(commands)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), ending=st.sampled_from(ENDS), called=st.booleans())
    def end(self, data: st.DataObject, ending: tuple[Status, ApiError | None], called: bool) -> None:
        status, problem = ending
        lane = data.draw(st.sampled_from(list(self.running)))
        begun = self.running.pop(lane)
        name = self.names.pop(lane, f"resp_{begun.fields['n']}")
        known = link(name) if status in (Status.COMPLETED, Status.INCOMPLETE) else None
        if name.startswith("resp_named"):
            self.every.add(name)
        else:  # it ended without a name: only tests do that
            self.said -= {steer.id for steer in begun.steers}
        if known is not None:
            self.latest[lane] = known.response_id
        elif status is Status.FAILED:
            self.evict(begun, problem)
        self.follow(self.connection.ended(begun, status, known, problem, [CALL] if called else []))

    @precondition(lambda self: set(self.running) - set(self.names))
    @rule(data=st.data(), problem=st.sampled_from(PROBLEMS))
    def refuse(self, data: st.DataObject, problem: ApiError) -> None:
        lane = data.draw(st.sampled_from(sorted(set(self.running) - set(self.names), key=str)))
        begun = self.running.pop(lane)
        if not begun.is_successor:
            self.evict(begun, problem)
        commands = self.connection.refused(begun, problem)
        assert begun.is_successor or codes(commands)[0][0] == problem.status
        self.follow(commands)

    def evict(self, begun: Create, problem: ApiError | None) -> None:
        """A lane forgets the parent of a continuation that failed for good; of one that may try again never."""
        if problem is not None and problem.status in (429, 503):
            return
        if self.latest.get(begun.lane) == begun.fields.get("previous_response_id", "none"):
            del self.latest[begun.lane]

    @rule(age=st.sampled_from([10, 50, 60, 70, 71]))
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

    @invariant()
    def what_can_be_continued_is_remembered(self) -> None:
        for response_id in [*(f"resp_{number}" for number in range(1, self.sent + 1)), *self.every]:
            remembered = self.connection.recall(response_id) is not None
            assert remembered == (response_id in self.latest.values()), response_id

    def teardown(self) -> None:
        """Whatever was accepted is started in the end, once, unless the connection's life is over."""
        while self.running:
            begun = self.running.pop(next(iter(self.running)))
            self.said -= {steer.id for steer in begun.steers} if begun.lane not in self.names else set()
            self.names.pop(begun.lane, None)
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
