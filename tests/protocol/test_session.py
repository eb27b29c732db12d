"""`WebSocketSession`: lanes, parents, limits and the end of a connection's life, with time as an argument."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable

import orjson
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.harmony.prompt import render_text
from responses_app.protocol.chain import ChainLink, new_link
from responses_app.protocol.errors import overloaded, previous_response_not_found
from responses_app.protocol.resources import Status
from responses_app.protocol.session import (
    CancelRuns,
    Close,
    Command,
    Create,
    Send,
    SessionLimits,
    Start,
    WebSocketSession,
)

DEEP = orjson.loads("[" * 1010 + "]" * 1010)
LIMITS = SessionLimits(max_in_flight=3, max_lanes=4, max_queued=5, warning_after=50, lifetime=60, grace=10)


def session(limits: SessionLimits = LIMITS, **changes: object) -> WebSocketSession:
    values = {name: getattr(limits, name) for name in SessionLimits.__slots__} | changes
    return WebSocketSession(SessionLimits(**values), opened=1000.0, unix_offset=1_700_000_000.0)  # type: ignore[arg-type]


def create(lane: str | None = None, /, *, size: int = 100, **fields: object) -> tuple[dict[str, object], int]:
    named = {} if lane is None else {"stream_id": lane}
    return {"type": "response.create", **named, **fields}, size


def started(commands: Iterable[Command]) -> list[Create]:
    return [command.create for command in commands if isinstance(command, Start)]


def frames(commands: Iterable[Command]) -> list[dict[str, object]]:
    return [json.loads(command.text) for command in commands if isinstance(command, Send)]


def codes(commands: Iterable[Command]) -> list[tuple[object, object, object]]:
    """Return (status, code, stream_id) of each error frame."""
    sent = [frame for frame in frames(commands) if frame["type"] == "error"]
    return [(frame["status"], frame["error"]["code"], frame.get("stream_id")) for frame in sent]  # type: ignore[index]


def link(response_id: str, text: str = "hi", parent: ChainLink | None = None) -> ChainLink:
    return new_link(
        parent, response_id=response_id, started_on="2026-11-21", messages=[render_text("user", text)], items=[]
    )


def run(
    connection: WebSocketSession,
    response_id: str,
    lane: str | None = None,
    status: Status = Status.COMPLETED,
    **fields: object,
) -> list[Command]:
    """Let a create on an idle lane run to its end."""
    [begun] = started(connection.receive(*create(lane, **fields)))
    return connection.ended(begun, status, link(response_id) if status is not Status.FAILED else None)


class TestFrames:
    @pytest.mark.parametrize("frame", [[], "text", 1, None, True])
    def test_a_frame_that_is_no_object(self, frame: object) -> None:
        assert codes(session().receive(frame, 2)) == [(400, "invalid_json", None)]

    @pytest.mark.parametrize("kind", [None, "response.cancel", 7, {}, "", "x" * 500])
    def test_an_unknown_type(self, kind: object) -> None:
        frame = {} if kind is None else {"type": kind}
        commands = session().receive(frame, 2)
        assert codes(commands) == [(400, "unknown_event_type", None)]
        assert len(commands[0].text) < 500  # type: ignore[union-attr]

    def test_steering_is_answered_and_returns_the_input(self) -> None:
        frame = {"type": "response.steer", "previous_response_id": "resp_1", "input": "Faster!"}
        [answer] = frames(session().receive(frame, 2))
        assert answer["type"] == "response.steer.failed"
        assert answer["error"]["code"] == "steering_not_supported"  # type: ignore[index]
        assert answer["steer"] == {"previous_response_id": "resp_1", "input": "Faster!"}

    @pytest.mark.parametrize(
        "frame",
        [
            {"type": DEEP},
            {"type": "response.create", "stream_id": DEEP},
            {"type": "response.steer", "input": DEEP, "previous_response_id": DEEP},
        ],
    )
    def test_a_frame_that_is_nested_deeper_than_can_be_written(self, frame: dict[str, object]) -> None:
        [answer] = frames(session().receive(frame, 2000))
        assert answer["type"] in ("error", "response.steer.failed")

    @pytest.mark.parametrize("lane", ["", "x" * 257, "a b", "ä", "a/b", 7, None, ["a"], "a\n", True])
    def test_a_lane_that_is_no_name(self, lane: object) -> None:
        commands = session().receive({"type": "response.create", "stream_id": lane}, 2)
        assert codes(commands) == [(400, "invalid_stream_id", None)]
        assert frames(commands)[0]["error"]["param"] == "stream_id"  # type: ignore[index]

    @pytest.mark.parametrize("lane", ["a", "x" * 256, "A-z_0.9", "..."])
    def test_a_lane_with_a_name(self, lane: str) -> None:
        [begun] = started(session().receive(*create(lane)))
        assert begun.lane == lane


class TestLanes:
    def test_a_lane_is_first_in_first_out_and_one_at_a_time(self) -> None:
        connection = session()
        [first] = started(connection.receive(*create("a", n=1)))
        assert connection.receive(*create("a", n=2)) == []
        assert connection.receive(*create("a", n=3)) == []
        [second] = started(connection.ended(first, Status.COMPLETED, link("resp_1")))
        assert second.fields["n"] == 2
        [third] = started(connection.ended(second, Status.FAILED, None))
        assert third.fields["n"] == 3
        assert connection.ended(third, Status.CANCELLED, None) == []
        assert connection.in_flight == 0

    def test_lanes_run_side_by_side_and_the_default_lane_is_one(self) -> None:
        connection = session()
        for lane in (None, "a", "b"):
            assert [begun.lane for begun in started(connection.receive(*create(lane)))] == [lane]
        assert connection.in_flight == 3

    def test_over_the_limit_the_oldest_waiting_goes_first(self) -> None:
        connection = session()
        running = [started(connection.receive(*create(lane)))[0] for lane in (None, "a", "b")]
        assert connection.receive(*create("c")) == []
        assert connection.receive(*create("a")) == []
        assert [begun.lane for begun in started(connection.ended(running[1], Status.COMPLETED, link("r")))] == ["c"]

    def test_a_busy_lane_holds_up_no_other(self) -> None:
        connection = session()
        connection.receive(*create("a"))
        connection.receive(*create("a"))
        assert [begun.lane for begun in started(connection.receive(*create("b")))] == ["b"]

    def test_sixteen_in_flight_by_default(self) -> None:
        connection = WebSocketSession(SessionLimits(), opened=0)
        begun = [create for n in range(32) for create in started(connection.receive(*create_on(n)))]
        assert len(begun) == connection.in_flight == 16

    def test_the_thirty_third_lane_is_refused_and_the_others_go_on(self) -> None:
        connection = WebSocketSession(SessionLimits(), opened=0)
        for number in range(32):
            [begun] = started(connection.receive(*create_on(number)))
            connection.ended(begun, Status.COMPLETED, None)
        assert codes(connection.receive(*create_on(32))) == [(400, "websocket_stream_limit_reached", "lane-32")]
        assert started(connection.receive(*create_on(0)))
        assert started(connection.receive(*create()))

    def test_the_queue_is_bounded(self) -> None:
        connection = session()
        connection.receive(*create("a"))
        for _ in range(LIMITS.max_queued):
            assert connection.receive(*create("a")) == []
        commands = connection.receive(*create("a"))
        assert codes(commands) == [(429, "rate_limit_exceeded", "a")]
        [frame] = frames(commands)
        assert frame["headers"] == frame["error"]["headers"] == {"retry-after": "1"}  # type: ignore[index]
        assert started(connection.receive(*create("b"))), "what can start at once needs no queue"

    def test_the_queue_is_bounded_in_bytes_too(self) -> None:
        connection = session(max_state_bytes=1000)
        connection.receive(*create("a", size=5000))
        assert connection.receive(*create("a", size=600)) == []
        assert codes(connection.receive(*create("a", size=600))) == [(429, "rate_limit_exceeded", "a")]
        assert connection.receive(*create("a", size=400)) == []

    def test_a_queued_create_that_was_refused_is_not_started_later(self) -> None:
        connection = session(max_queued=0)
        [begun] = started(connection.receive(*create()))
        assert codes(connection.receive(*create())) == [(429, "rate_limit_exceeded", None)]
        assert connection.ended(begun, Status.COMPLETED, None) == []

    def test_a_refused_create_lets_the_next_begin(self) -> None:
        connection = session()
        [first] = started(connection.receive(*create("a", n=1)))
        connection.receive(*create("a", n=2))
        commands = connection.refused(first, overloaded("The model is loading.", retry_after=5))
        assert codes(commands) == [(503, "server_is_overloaded", "a")]
        assert frames(commands)[0]["headers"] == {"retry-after": "5"}
        assert [begun.fields["n"] for begun in started(commands)] == [2]
        assert isinstance(commands[0], Send), "the error first, then what comes next"

    def test_equal_creates_are_still_two(self) -> None:
        connection = session()
        [first] = started(connection.receive(*create("a")))
        connection.receive(*create("a"))
        connection.receive(*create("a"))
        [second] = started(connection.ended(first, Status.COMPLETED, None))
        assert started(connection.ended(second, Status.COMPLETED, None))


def create_on(number: int) -> tuple[dict[str, object], int]:
    return create(f"lane-{number}")


class TestParents:
    def test_a_lane_remembers_its_latest_response(self) -> None:
        connection = session()
        run(connection, "resp_1")
        run(connection, "resp_2")
        assert connection.recall("resp_1") is None
        assert connection.recall("resp_2").response_id == "resp_2"  # type: ignore[union-attr]

    @pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED])
    def test_failed_and_cancelled_responses_are_not_remembered(self, status: Status) -> None:
        connection = session()
        run(connection, "resp_1")
        run(connection, "resp_2", status=status)
        assert connection.recall("resp_2") is None
        assert connection.recall("resp_1") is not None, "it named no parent, so nothing is evicted"

    def test_incomplete_responses_are_remembered(self) -> None:
        connection = session()
        run(connection, "resp_1", status=Status.INCOMPLETE)
        assert connection.recall("resp_1") is not None

    def test_the_parent_is_bound_when_the_create_arrives(self) -> None:
        connection = session()
        run(connection, "resp_1")
        [busy] = started(connection.receive(*create("b")))
        connection.receive(*create("b", previous_response_id="resp_1"))
        run(connection, "resp_2")
        assert connection.recall("resp_1") is None
        [fork] = started(connection.ended(busy, Status.COMPLETED, None))
        assert fork.parent is not None
        assert fork.parent.response_id == "resp_1"

    def test_a_fork_leaves_the_source_lane_where_it_is(self) -> None:
        connection = session()
        run(connection, "resp_1", "a")
        run(connection, "resp_2", "b", previous_response_id="resp_1")
        assert connection.recall("resp_1") is not None
        assert connection.recall("resp_2") is not None

    def test_an_unknown_parent_is_left_to_the_store(self) -> None:
        [begun] = started(session().receive(*create(previous_response_id="resp_9")))
        assert begun.parent is None
        assert begun.previous_response_id == "resp_9"

    @pytest.mark.parametrize("value", [None, 7, ["resp_1"]])
    def test_a_parent_that_is_no_id_is_left_to_validation(self, value: object) -> None:
        [begun] = started(session().receive(*create(previous_response_id=value)))
        assert begun.previous_response_id is None

    def test_a_same_lane_failure_evicts_the_parent_it_named(self) -> None:
        connection = session()
        run(connection, "resp_1", "a")
        run(connection, "resp_2", "a", status=Status.FAILED, previous_response_id="resp_1")
        assert connection.recall("resp_1") is None

    def test_a_same_lane_error_frame_evicts_the_parent_it_named(self) -> None:
        connection = session()
        run(connection, "resp_1", "a")
        [begun] = started(connection.receive(*create("a", previous_response_id="resp_1")))
        connection.refused(begun, overloaded("No.", retry_after=1))
        assert connection.recall("resp_1") is None

    def test_an_unknown_parent_evicts_nothing(self) -> None:
        connection = session()
        run(connection, "resp_1", "a")
        [begun] = started(connection.receive(*create("a", previous_response_id="resp_9")))
        connection.refused(begun, previous_response_not_found("resp_9"))
        assert connection.recall("resp_1") is not None

    @pytest.mark.parametrize("by_frame", [True, False])
    def test_a_fork_that_fails_keeps_the_parent(self, by_frame: bool) -> None:
        connection = session()
        run(connection, "resp_1", "a")
        [fork] = started(connection.receive(*create("b", previous_response_id="resp_1")))
        if by_frame:
            connection.refused(fork, overloaded("No.", retry_after=1))
        else:
            connection.ended(fork, Status.FAILED, None)
        assert connection.recall("resp_1") is not None

    def test_a_cancelled_continuation_keeps_its_parent(self) -> None:
        connection = session()
        run(connection, "resp_1", "a")
        run(connection, "resp_2", "a", status=Status.CANCELLED, previous_response_id="resp_1")
        assert connection.recall("resp_1") is not None

    def test_refusals_before_a_run_evict_nothing(self) -> None:
        connection = session(max_queued=0)
        run(connection, "resp_1", "a")
        for number in range(3):
            run(connection, f"resp_b{number}", f"b{number}")
        connection.receive("no json", 7)
        connection.receive({"type": "response.cancel", "previous_response_id": "resp_1"}, 2)
        connection.receive(*create("fifth", previous_response_id="resp_1"))
        connection.receive({"type": "response.create", "stream_id": "", "previous_response_id": "resp_1"}, 2)
        connection.receive(*create("a"))
        assert codes(connection.receive(*create("a", previous_response_id="resp_1")))[0][1] == "rate_limit_exceeded"
        assert connection.recall("resp_1") is not None

    def test_over_the_bytes_the_lane_that_was_idle_longest_forgets(self) -> None:
        size = link("resp_0").total_bytes
        connection = session(max_state_bytes=2 * size)
        run(connection, "resp_1", "a")
        run(connection, "resp_2", "b")
        run(connection, "resp_3", "a")
        run(connection, "resp_4", "c")
        assert connection.recall("resp_2") is None
        assert connection.recall("resp_3") is not None
        assert connection.recall("resp_4") is not None

    def test_a_chain_over_the_bytes_is_not_kept_at_all(self) -> None:
        connection = session(max_state_bytes=10)
        run(connection, "resp_1")
        assert connection.recall("resp_1") is None


class TestReject:
    def test_one_response_at_a_time_on_the_whole_connection(self) -> None:
        connection = session(reject_when_busy=True)
        run(connection, "resp_1", "a")
        [begun] = started(connection.receive(*create("a", previous_response_id="resp_1")))
        for lane in ("a", "b", None):
            commands = connection.receive(*create(lane, previous_response_id="resp_1"))
            assert codes(commands) == [(409, "concurrent_request", lane)]
            assert started(commands) == []
        assert connection.in_flight == 1, "the running one goes on"
        assert connection.recall("resp_1") is not None, "and nothing is evicted"
        connection.ended(begun, Status.COMPLETED, link("resp_2"))
        assert started(connection.receive(*create("b")))

    def test_a_refused_lane_takes_none_of_the_lanes(self) -> None:
        connection = session(reject_when_busy=True, max_lanes=1)
        [begun] = started(connection.receive(*create()))
        connection.receive(*create("a"))
        connection.ended(begun, Status.COMPLETED, None)
        assert started(connection.receive(*create("b")))


class TestLifetime:
    def test_nothing_is_due_before_the_warning(self) -> None:
        connection = session()
        assert connection.deadline() == 1050
        assert connection.tick(1049.9) == []

    def test_the_warning_comes_once_and_is_no_error(self) -> None:
        connection = session()
        [frame] = frames(connection.tick(1050.0))
        assert frame == {
            "type": "connection_expiring",
            "message": "Connection will close in 1 minute",
            "seconds_left": 10,
            "closes_at": 1_700_001_060,
        }
        assert connection.tick(1051.0) == []
        assert connection.deadline() == 1060

    def test_the_warning_of_the_defaults(self) -> None:
        connection = WebSocketSession(SessionLimits(), opened=0, unix_offset=1_000)
        assert connection.deadline() == 3300
        [frame] = frames(connection.tick(3300))
        assert (frame["message"], frame["seconds_left"]) == ("Connection will close in 5 minutes", 300)
        assert frame["closes_at"] == 4600

    def test_no_warning_where_it_would_come_after_the_end(self) -> None:
        connection = session(warning_after=100)
        assert connection.deadline() == 1060
        assert codes(connection.tick(1060)) == [(400, "websocket_connection_limit_reached", None)]

    def test_an_idle_connection_ends_with_a_frame_and_a_close(self) -> None:
        connection = session(lifetime=3600, warning_after=3300)
        commands = connection.tick(4600.0)
        [frame] = frames(commands)
        assert (frame["type"], frame["status"]) == ("error", 400)
        assert "(60 minutes)" in frame["error"]["message"]  # type: ignore[index]
        assert commands[-1] == Close(1000)
        assert connection.deadline() is None

    def test_nothing_is_sent_after_the_close(self) -> None:
        connection = session()
        connection.tick(1060)
        assert connection.tick(2000) == []
        assert connection.receive(*create()) == []
        assert connection.receive("nonsense", 8) == []
        assert connection.receive({"type": "response.steer"}, 8) == []

    def test_what_runs_may_finish_and_only_then_the_frame_comes(self) -> None:
        """Clients drop the connection at that frame, so it must not come while another lane still runs."""
        connection = session()
        [a] = started(connection.receive(*create("a")))
        [b] = started(connection.receive(*create("b")))
        connection.receive(*create("a", n=2))
        assert connection.tick(1060) == [], "the warning would come too late"
        assert connection.deadline() == 1070
        assert connection.receive(*create("c")) == []
        assert connection.receive(*create()) == []
        assert connection.ended(a, Status.COMPLETED, link("resp_1")) == [], "its lane starts nothing more"
        commands = connection.ended(b, Status.COMPLETED, link("resp_2"))
        assert codes(commands) == [
            (400, "websocket_connection_limit_reached", "a"),
            (400, "websocket_connection_limit_reached", "c"),
            (400, "websocket_connection_limit_reached", None),
        ]
        assert commands[-1] == Close(1000)

    def test_a_refusal_of_the_last_one_ends_it_too(self) -> None:
        connection = session()
        [a] = started(connection.receive(*create("a")))
        connection.tick(1060)
        commands = connection.refused(a, overloaded("No.", retry_after=1))
        assert [code for _, code, _ in codes(commands)] == [
            "server_is_overloaded",
            "websocket_connection_limit_reached",
        ]
        assert commands[-1] == Close(1000)

    def test_the_queue_stays_bounded_in_the_grace(self) -> None:
        connection = session(max_queued=1)
        connection.receive(*create("a"))
        connection.tick(1060)
        assert connection.receive(*create("b")) == []
        assert codes(connection.receive(*create("c"))) == [(429, "rate_limit_exceeded", "c")]

    def test_what_still_runs_after_the_grace_is_cancelled(self) -> None:
        connection = session()
        [a] = started(connection.receive(*create("a")))
        connection.tick(1060)
        assert connection.tick(1069.9) == []
        commands = connection.tick(1070)
        assert commands[0] == CancelRuns()
        assert codes(commands) == [(400, "websocket_connection_limit_reached", None)]
        assert commands[-1] == Close(1000)
        assert connection.ended(a, Status.CANCELLED, None) == []

    def test_a_late_tick_does_all_at_once(self) -> None:
        connection = session()
        connection.receive(*create("a"))
        assert [type(command) for command in connection.tick(5000)] == [CancelRuns, Send, Close]


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
