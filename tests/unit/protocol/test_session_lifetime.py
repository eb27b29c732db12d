"""`WebSocketSession`: the end of a connection's life, with time as an argument."""

import pytest

from responses_app.protocol.errors import overloaded
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.session.session import (
    CancelRuns,
    Close,
    SessionSettings,
    WebSocketSession,
)
from responses_app.protocol.session.steering import Send
from responses_app.protocol.transport import lifetime_over
from tests.unit.protocol.sessions import codes, create, frames, link, session, started

CLOSE = Close(1000, "websocket_connection_limit_reached")
GOODBYE = Close(1012, "the server stops: connect again")


class TestLifetime:
    def test_nothing_is_due_before_the_warning(self) -> None:
        connection = session()
        assert connection.deadline() == 1050
        assert connection.tick(1049.9) == []

    def test_the_warning_comes_once_and_is_not_an_error(self) -> None:
        connection = session()
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
        assert commands[-1] == CLOSE

    def test_a_refusal_of_the_last_one_ends_it_too(self) -> None:
        connection = session()
        [a] = started(connection.receive(*create("a")))
        connection.tick(1060)
        commands = connection.refused(a, overloaded("No.", retry_after=1))
        assert [code for _, code, _ in codes(commands)] == [
            "server_is_overloaded",
            "websocket_connection_limit_reached",
        ]
        assert commands[-1] == CLOSE

    def test_the_queue_stays_bounded_in_the_grace(self) -> None:
        connection = session(websocket_max_queued=1)
        connection.receive(*create("a"))
        connection.tick(1060)
        assert connection.receive(*create("b")) == []
        assert codes(connection.receive(*create("c"))) == [(429, "rate_limit_exceeded", "c")]

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

    def test_a_late_tick_lets_the_last_words_be_said(self) -> None:
        connection = session()
        [a] = started(connection.receive(*create("a")))
        assert connection.tick(5000) == [CancelRuns()]
        assert [type(command) for command in connection.ended(a, Status.CANCELLED, None)] == [Send, Close]

    def test_an_idle_connection_that_is_looked_at_long_after_its_end_only_closes(self) -> None:
        commands = session().tick(5000)
        assert [type(command) for command in commands] == [Send, Close], "there is nothing to cancel"


class TestLeaving:
    def test_an_idle_connection_closes_at_once_and_once(self) -> None:
        connection = session()
        assert connection.leave() == [GOODBYE]
        assert connection.leave() == []
        assert connection.receive(*create()) == []
        assert connection.deadline() is None

    def test_what_runs_ends_first_and_what_comes_is_left_to_who_starts_it(self) -> None:
        connection = session()
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

    def test_a_life_that_is_over_ends_as_it_would_have(self) -> None:
        connection = session()
        [running] = started(connection.receive(*create()))
        connection.tick(1060.0)
        assert connection.leave() == []
        assert connection.ended(running, Status.COMPLETED, link("resp_1"))[-1] == CLOSE
