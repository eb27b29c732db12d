"""`WebSocketSession`: lanes, parents, limits, and the end of a connection's life, with time as an argument."""

import json
import re
from dataclasses import replace

import pytest

from responses_app.protocol.errors import (
    ApiError,
    invalid_request,
    overloaded,
    previous_response_not_found,
    rate_limited,
    server_error,
)
from responses_app.protocol.events.events import reply_frame
from responses_app.protocol.ids import PublicId
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.session.session import CancelRuns, Close, SessionSettings, WebSocketSession
from responses_app.protocol.session.steering import Reply, Send
from responses_app.protocol.transport import lifetime_over
from tests.unit.protocol.sessions import DEEP, SETTINGS, codes, create, frames, link, run, session, started

FOR_GOOD = [invalid_request("No."), server_error("req_1"), ApiError("Too large.", status=413)]
FOR_A_WHILE = [
    rate_limited("Full."),
    overloaded("Away.", retry_after=5),
    ApiError("Odd.", status=500, retry_after=1),
    ApiError("Full.", status=429),
]


class TestFrames:
    @pytest.mark.parametrize("frame", [[], "text", 1, None, True])
    def test_a_frame_that_is_not_an_object(self, frame: object) -> None:
        assert codes(session().receive(frame, 2)) == [(400, "invalid_json", None)]

    @pytest.mark.parametrize("kind", [None, "response.processed", 7, {}, "", "x" * 500])
    def test_an_unknown_type(self, kind: object) -> None:
        frame = {} if kind is None else {"type": kind}
        commands = session().receive(frame, 2)
        assert codes(commands) == [(400, "unknown_event_type", None)]
        assert len(commands[0].text) < 500  # type: ignore[union-attr]

    def test_an_unknown_type_is_told_those_that_are_known(self) -> None:
        [refusal] = frames(session().receive({"type": "response.nothing"}, 2))
        known = re.findall(r"'([\w.]+)'", refusal["error"]["message"].partition("Supported")[2])  # type: ignore[index]
        assert "response.create" in known
        for kind in known:
            assert "unknown_event_type" not in str(session().receive({"type": kind}, 2))

    @pytest.mark.parametrize(
        "frame",
        [
            {"type": DEEP},
            {"type": "response.create", "stream_id": DEEP},
            {"type": "response.steer", "input": DEEP, "previous_response_id": DEEP},
            {"type": "response.interrupt", "response_id": DEEP, "mode": DEEP},
            {"type": "response.cancel", "response_id": DEEP},
        ],
    )
    def test_a_frame_that_is_nested_deeper_than_can_be_written(self, frame: dict[str, object]) -> None:
        commands = session().receive(frame, 2000)
        [answer] = frames(commands)
        assert answer["type"] in ("error", "response.steer.failed", "response.interrupt.failed")
        if isinstance(commands[0], Reply):
            assert json.loads(reply_frame(commands[0].frame, 0))

    @pytest.mark.parametrize("lane", ["", "x" * 257, "a b", "ä", "a/b", 7, None, ["a"], "a\n", True])
    def test_a_lane_that_is_not_a_name(self, lane: object) -> None:
        commands = session().receive({"type": "response.create", "stream_id": lane}, 2)
        assert codes(commands) == [(400, "invalid_stream_id", None)]
        assert frames(commands)[0]["error"]["param"] == "stream_id"  # type: ignore[index]


class TestForgetting:
    def test_what_is_deleted_is_forgotten_in_every_lane(self, connection: WebSocketSession) -> None:
        for name, lane in (("resp_1", None), ("resp_2", "a"), ("resp_3", "b")):
            run(connection, name, lane)
        connection.forget({"resp_1", "resp_3", "resp_9"})
        recalled = [connection.recall(name) for name in ("resp_1", "resp_2", "resp_3")]
        assert [each and each.response_id for each in recalled] == [None, "resp_2", None]

    def test_what_waits_to_continue_it_has_to_find_it_elsewhere(self, connection: WebSocketSession) -> None:
        run(connection, "resp_1")
        run(connection, "resp_2", "a")
        [busy] = started(connection.receive(*create()))
        connection.receive(*create(previous_response_id="resp_1"))
        connection.receive(*create(previous_response_id="resp_2"))
        connection.forget({"resp_1"})
        [first] = started(connection.ended(busy, Status.FAILED, None))
        [second] = started(connection.ended(first, Status.FAILED, None))
        assert first.parent is None
        assert second.parent is not None


class TestLanes:
    def test_a_lane_is_first_in_first_out_and_one_at_a_time(self, connection: WebSocketSession) -> None:
        [first] = started(connection.receive(*create("a", n=1)))
        assert connection.receive(*create("a", n=2)) == []
        assert connection.receive(*create("a", n=3)) == []
        [second] = started(connection.ended(first, Status.COMPLETED, link("resp_1")))
        assert second.fields["n"] == 2
        [third] = started(connection.ended(second, Status.FAILED, None))
        assert third.fields["n"] == 3
        assert connection.ended(third, Status.CANCELLED, None) == []
        assert connection.in_flight == 0

    def test_lanes_run_side_by_side_and_the_default_lane_is_one(self, connection: WebSocketSession) -> None:
        for lane in (None, "a", "b"):
            assert [begun.lane for begun in started(connection.receive(*create(lane)))] == [lane]
        assert connection.in_flight == 3

    def test_over_the_limit_the_oldest_waiting_goes_first(self, connection: WebSocketSession) -> None:
        running = [started(connection.receive(*create(lane)))[0] for lane in (None, "a", "b")]
        assert connection.receive(*create("c")) == []
        assert connection.receive(*create("a")) == []
        assert [begun.lane for begun in started(connection.ended(running[1], Status.COMPLETED, link("r")))] == ["c"]

    def test_sixteen_in_flight_by_default(self) -> None:
        connection = WebSocketSession(SessionSettings(), opened=0, new_id=str)
        begun = [create for n in range(32) for create in started(connection.receive(*create_on(n)))]
        assert len(begun) == connection.in_flight == 16

    def test_the_thirty_third_lane_is_refused_and_the_others_go_on(self) -> None:
        connection = WebSocketSession(SessionSettings(), opened=0, new_id=str)
        for number in range(32):
            [begun] = started(connection.receive(*create_on(number)))
            connection.ended(begun, Status.COMPLETED, None)
        assert codes(connection.receive(*create_on(32))) == [(400, "websocket_stream_limit_reached", "lane-32")]
        assert started(connection.receive(*create_on(0)))
        assert started(connection.receive(*create()))

    def test_the_queue_is_bounded(self, connection: WebSocketSession) -> None:
        connection.receive(*create("a"))
        for _ in range(SETTINGS.websocket_max_queued):
            assert connection.receive(*create("a")) == []
        commands = connection.receive(*create("a"))
        assert codes(commands) == [(429, "rate_limit_exceeded", "a")]
        [frame] = frames(commands)
        assert frame["headers"] == frame["error"]["headers"] == {"retry-after": "1"}  # type: ignore[index]
        assert started(connection.receive(*create("b"))), "what can start at once needs no queue"

    def test_the_queue_is_bounded_in_bytes_too(self) -> None:
        connection = session(websocket_max_state_bytes=1000)
        connection.receive(*create("a", size=5000))
        assert connection.receive(*create("a", size=600)) == []
        assert codes(connection.receive(*create("a", size=600))) == [(429, "rate_limit_exceeded", "a")]
        assert connection.receive(*create("a", size=400)) == []

    def test_a_refused_create_lets_the_next_begin(self, connection: WebSocketSession) -> None:
        [first] = started(connection.receive(*create("a", n=1)))
        connection.receive(*create("a", n=2))
        commands = connection.refused(first, overloaded("The model is loading.", retry_after=5))
        assert codes(commands) == [(503, "server_is_overloaded", "a")]
        assert frames(commands)[0]["headers"] == {"retry-after": "5"}
        assert [begun.fields["n"] for begun in started(commands)] == [2]
        assert isinstance(commands[0], Send), "the error first, then what comes next"


def create_on(number: int) -> tuple[dict[str, object], int]:
    return create(f"lane-{number}")


class TestParents:
    @pytest.mark.parametrize(
        ("lane", "parent", "status", "left"),
        [
            ("a", None, Status.COMPLETED, ["resp_2"]),
            ("a", None, Status.INCOMPLETE, ["resp_2"]),
            ("a", None, Status.FAILED, ["resp_1"]),  # it named no parent, so nothing is evicted
            ("a", None, Status.CANCELLED, ["resp_1"]),
            ("a", "resp_1", Status.CANCELLED, ["resp_1"]),
            ("a", "resp_1", Status.FAILED, []),
            ("b", "resp_1", Status.COMPLETED, ["resp_1", "resp_2"]),  # a fork leaves the source lane where it is
            ("b", "resp_1", Status.FAILED, ["resp_1"]),
        ],
    )
    def test_a_lane_remembers_its_latest_response(
        self, lane: str, parent: str | None, status: Status, left: list[str], connection: WebSocketSession
    ) -> None:
        run(connection, "resp_1", "a")
        named = {} if parent is None else {"previous_response_id": parent}
        run(connection, "resp_2", lane, status, **named)  # type: ignore[arg-type]
        recalled = {name: connection.recall(name) for name in ("resp_1", "resp_2")}
        assert [name for name, known in recalled.items() if known and known.response_id == name] == left

    def test_the_parent_is_bound_when_the_create_arrives(self, connection: WebSocketSession) -> None:
        run(connection, "resp_1")
        [busy] = started(connection.receive(*create("b")))
        connection.receive(*create("b", previous_response_id="resp_1"))
        run(connection, "resp_2")
        assert connection.recall("resp_1") is None
        [fork] = started(connection.ended(busy, Status.COMPLETED, None))
        assert fork.parent.response_id == "resp_1"

    def test_of_a_turn_that_several_lanes_went_on_with_the_newest_leg_is_found(
        self, connection: WebSocketSession
    ) -> None:
        for lane, leg in (("a", 2), ("b", 3), ("c", 1)):
            [begun] = started(connection.receive(*create(lane)))
            its_link = replace(link(f"resp_{leg}"), public=PublicId("resp_all", leg))
            connection.ended(begun, Status.COMPLETED, its_link)
        assert connection.recall("resp_all").response_id == "resp_3"  # type: ignore[union-attr]

    @pytest.mark.parametrize("by_frame", [True, False])
    @pytest.mark.parametrize(
        ("lane", "parent", "problem", "stays"),
        [
            *(("a", "resp_1", problem, False) for problem in FOR_GOOD),
            *(("a", "resp_1", problem, True) for problem in FOR_A_WHILE),
            ("a", "resp_9", previous_response_not_found("resp_9"), True),
            ("b", "resp_1", FOR_GOOD[0], True),
        ],
    )
    def test_a_failure_for_good_evicts_the_parent_that_it_named_on_its_lane(
        self, lane: str, parent: str, problem: ApiError, stays: bool, by_frame: bool, connection: WebSocketSession
    ) -> None:
        run(connection, "resp_1", "a")
        [begun] = started(connection.receive(*create(lane, previous_response_id=parent)))
        if by_frame:
            connection.refused(begun, problem)
        else:
            connection.ended(begun, Status.FAILED, None, problem)
        assert (connection.recall("resp_1") is not None) == stays
        [again] = started(connection.receive(*create("a", previous_response_id="resp_1")))
        assert (again.parent is not None) == stays

    def test_refusals_before_a_run_evict_nothing(self) -> None:
        connection = session(websocket_max_queued=0)
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
        connection = session(websocket_max_state_bytes=2 * size)
        run(connection, "resp_1", "a")
        run(connection, "resp_2", "b")
        run(connection, "resp_3", "a")
        run(connection, "resp_4", "c")
        assert connection.recall("resp_2") is None
        assert connection.recall("resp_3") is not None
        assert connection.recall("resp_4") is not None

    def test_a_chain_over_the_bytes_is_not_kept_at_all(self) -> None:
        connection = session(websocket_max_state_bytes=10)
        run(connection, "resp_1")
        assert connection.recall("resp_1") is None


class TestReject:
    def test_one_response_at_a_time_on_the_whole_connection(self) -> None:
        connection = session(websocket_busy="reject")
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
        connection = session(websocket_busy="reject", max_lanes=1)
        [begun] = started(connection.receive(*create()))
        connection.receive(*create("a"))
        connection.ended(begun, Status.COMPLETED, None)
        assert started(connection.receive(*create("b")))


CLOSE = Close(1000, "websocket_connection_limit_reached")
GOODBYE = Close(1012, "the server stops: connect again")


class TestLifetime:
    def test_nothing_is_due_before_the_warning(self, connection: WebSocketSession) -> None:
        assert connection.deadline() == 1050
        assert connection.tick(1049.9) == []

    def test_the_warning_comes_once_and_is_not_an_error(self, connection: WebSocketSession) -> None:
        [frame] = frames(connection.tick(1050.0))
        assert frame == {
            "type": "connection_expiring",
            "message": "Connection will close in 10 seconds",
            "seconds_left": 10,
            "closes_at": 1_700_001_060,
        }
        assert connection.tick(1051.0) == []
        assert connection.deadline() == 1060

    def test_the_warning_of_the_defaults(self) -> None:
        connection = WebSocketSession(SessionSettings(), opened=0, new_id=str, unix_offset=1_000)
        assert connection.deadline() == 3300
        [frame] = frames(connection.tick(3300))
        assert (frame["message"], frame["seconds_left"]) == ("Connection will close in 5 minutes", 300)
        assert frame["closes_at"] == 4600

    def test_no_warning_where_it_would_come_after_the_end(self) -> None:
        connection = session(websocket_warning_seconds=100)
        assert connection.deadline() == 1060
        assert codes(connection.tick(1060)) == [(400, "websocket_connection_limit_reached", None)]

    def test_an_idle_connection_ends_with_a_frame_and_a_close(self) -> None:
        connection = session(websocket_lifetime_seconds=3600, websocket_warning_seconds=3300)
        commands = connection.tick(4600.0)
        [frame] = frames(commands)
        assert (frame["type"], frame["status"]) == ("error", 400)
        assert "(60 minutes)" in frame["error"]["message"]  # type: ignore[index]
        assert commands[-1] == CLOSE
        assert connection.deadline() is None

    @pytest.mark.parametrize(
        ("lifetime", "said"), [(1, "1 second"), (29.5, "29.5 seconds"), (90, "90 seconds"), (120, "2 minutes")]
    )
    def test_a_short_life_is_told_in_seconds(self, lifetime: float, said: str) -> None:
        assert f"({said})" in lifetime_over(lifetime).message

    def test_nothing_is_sent_after_the_close(self, connection: WebSocketSession) -> None:
        connection.tick(1060)
        assert connection.tick(2000) == []
        assert connection.receive(*create()) == []
        assert connection.receive("nonsense", 8) == []
        assert connection.receive({"type": "response.steer"}, 8) == []

    def test_what_runs_may_finish_and_only_then_the_frame_comes(self, connection: WebSocketSession) -> None:
        """Clients drop the connection at that frame, so it must not come while another lane still runs."""
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
        assert commands[-1] == CLOSE

    def test_a_refusal_of_the_last_one_ends_it_too(self, connection: WebSocketSession) -> None:
        [a] = started(connection.receive(*create("a")))
        connection.tick(1060)
        commands = connection.refused(a, overloaded("No.", retry_after=1))
        assert [code for _, code, _ in codes(commands)] == [
            "server_is_overloaded",
            "websocket_connection_limit_reached",
        ]
        assert commands[-1] == CLOSE

    def test_what_still_runs_after_the_grace_is_cancelled_and_says_so_before_the_frame(self) -> None:
        connection = session()
        [a] = started(connection.receive(*create("a")))
        [b] = started(connection.receive(*create("b")))
        connection.tick(1060)
        assert connection.receive(*create("a")) == []
        assert connection.tick(1069.9) == []
        assert connection.tick(1070) == [CancelRuns()]
        assert connection.ended(a, Status.CANCELLED, None) == []
        commands = connection.ended(b, Status.CANCELLED, None)
        assert codes(commands) == [(400, "websocket_connection_limit_reached", "a")]
        assert commands[-1] == CLOSE

    def test_what_was_cancelled_and_never_ends_holds_nothing_up(self) -> None:
        connection = session(last_words=5)
        [a] = started(connection.receive(*create("a")))
        connection.tick(1060)
        assert connection.tick(1071) == [CancelRuns()]
        assert connection.deadline() == 1076
        assert connection.tick(1075.9) == []
        commands = connection.tick(1076)
        assert codes(commands) == [(400, "websocket_connection_limit_reached", None)]
        assert commands[-1] == CLOSE
        assert connection.ended(a, Status.CANCELLED, None) == []
        assert connection.deadline() is None

    def test_a_late_tick_lets_the_last_words_be_said(self, connection: WebSocketSession) -> None:
        [a] = started(connection.receive(*create("a")))
        assert connection.tick(5000) == [CancelRuns()]
        assert [type(command) for command in connection.ended(a, Status.CANCELLED, None)] == [Send, Close]


class TestLeaving:
    def test_an_idle_connection_closes_at_once_and_once(self, connection: WebSocketSession) -> None:
        assert connection.leave() == [GOODBYE]
        assert connection.leave() == []
        assert connection.receive(*create()) == []
        assert connection.deadline() is None

    def test_what_runs_ends_first_and_what_comes_is_left_to_who_starts_it(self, connection: WebSocketSession) -> None:
        [running] = started(connection.receive(*create()))
        assert connection.receive(*create()) == [], "it waits for the first"
        assert connection.leave() == []
        [late] = started(connection.receive(*create("other")))
        assert codes(connection.refused(late, overloaded("the server stops", retry_after=1))) == [
            (503, "server_is_overloaded", "other")
        ]
        [waited] = started(connection.ended(running, Status.COMPLETED, link("resp_1")))
        commands = connection.refused(waited, overloaded("the server stops", retry_after=1))
        assert codes(commands) == [(503, "server_is_overloaded", None)]
        assert commands[-1] == GOODBYE

    def test_a_life_that_is_over_ends_as_it_would_have(self, connection: WebSocketSession) -> None:
        [running] = started(connection.receive(*create()))
        connection.tick(1060.0)
        assert connection.leave() == []
        assert connection.ended(running, Status.COMPLETED, link("resp_1"))[-1] == CLOSE
