"""Steering: what a client says to the responses that run on its connection, and every reason why it is not applied."""

from typing import Any

import pytest

from responses_app.protocol.errors import JsonObject, invalid_request, overloaded
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.response.steps import StopReason
from responses_app.protocol.session.session import Close, SessionSettings, WebSocketSession
from responses_app.protocol.session.steering import Reply, Stop
from tests.unit.protocol.sessions import codes, create, frames, session, started
from tests.unit.protocol.steers import CALL, OUTPUT, STUB, begun, end, failed, steer, steered, types


class TestAccepted:
    def test_the_response_is_stopped_at_a_boundary_and_continued_with_the_same_settings(self) -> None:
        connection = session()
        first = begun(connection, lane="a", temperature=0.5, previous_response_id="resp_0")
        commands = steer(connection)
        assert commands == [
            Reply(
                {"type": "response.steer.accepted", "steer": {"id": "steer_1", "previous_response_id": "resp_1"}}, "a"
            ),
            Stop("a", StopReason.STEERED),
        ]
        [successor] = started(end(connection, first))
        assert successor.lane == "a"
        assert successor.parent.response_id == "resp_1"
        assert successor.fields == {
            **first.fields,
            "previous_response_id": "resp_1",
            "input": [{"type": "message", "role": "user", "content": "Faster!"}],
        }

    def test_what_was_of_the_first_alone_is_not_its_successors(self, connection: WebSocketSession) -> None:
        first = steered(connection, request_id="my-id", previous_input_messages=[{"role": "user", "content": "x"}])
        [successor] = started(end(connection, first))
        assert not successor.fields.keys() & {"request_id", "previous_input_messages"}

    @pytest.mark.parametrize("status", [Status.COMPLETED, Status.INCOMPLETE])
    def test_one_that_ends_by_itself_first_has_a_successor_all_the_same(self, status: Status) -> None:
        connection = session()
        first = steered(connection)
        assert len(started(end(connection, first, status=status))) == 1

    def test_several_go_into_one_successor_in_order_and_stop_it_once(self, connection: WebSocketSession) -> None:
        first = begun(connection)
        steer(connection, "one")
        parts = [{"type": "input_text", "text": "two"}]
        again = steer(connection, [{"role": "user", "content": parts}, {"role": "user", "content": "three"}])
        assert types(again) == ["response.steer.accepted"]
        assert not any(isinstance(command, Stop) for command in again)
        [successor] = started(end(connection, first))
        given = successor.fields["input"]
        assert [message["content"] for message in given] == ["one", parts, "three"]  # type: ignore[attr-defined, index]

    def test_it_goes_before_what_waits_on_its_lane_and_elsewhere(self, connection: WebSocketSession) -> None:
        first, *others = [begun(connection, f"resp_{number}", f"l{number}") for number in range(3)]
        connection.receive(*create("l0", input="later"))
        connection.receive(*create(None, input="also later"))
        steer(connection, response_id="resp_0")
        [successor] = started(end(connection, first, "resp_0"))
        assert successor.is_successor
        assert [each.fields["input"] for each in started(end(connection, successor, "resp_9"))] == ["later"]
        assert len(others) == 2

    def test_in_reject_mode_nothing_comes_between(self) -> None:
        connection = session(websocket_busy="reject")
        first = steered(connection)
        [successor] = started(end(connection, first))
        assert codes(connection.receive(*create(input="x"))) == [(409, "concurrent_request", None)]
        assert started(end(connection, successor, "resp_2")) == []
        assert len(started(connection.receive(*create(input="x")))) == 1


BAD = [
    ({}, "input"),
    ({"input": ""}, "input"),
    ({"input": 7}, "input"),
    ({"input": []}, "input"),
    ({"input": [7]}, "input[0]"),
    ({"input": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]}, "input[1]"),
    ({"input": [{"role": "user", "content": ""}]}, "input[0]"),
    ({"input": [{"role": "user", "content": []}]}, "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]}, "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0]"),
    ({"input": [{"role": "user", "content": ["x"]}]}, "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": ["input_text"], "text": "x"}]}]}, "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": {}}]}]}, "input[0]"),
    ({"input": [{"role": "user", "content": "x", "id": "msg_1"}]}, "input[0]"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0]"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    ({"input": "x", "stream_id": "a"}, "stream_id"),
    ({"input": "x", "model": "m"}, "model"),
    ({"input": "x", "previous_response_id": None}, "previous_response_id"),
    ({"input": "x", "previous_response_id": 7}, "previous_response_id"),
]


class TestFailed:
    @pytest.mark.parametrize(("fields", "named"), BAD)
    def test_invalid_input(self, fields: dict[str, object], named: str, connection: WebSocketSession) -> None:
        begun(connection)
        frame = {"type": "response.steer", "previous_response_id": "resp_1", **fields}
        commands = connection.receive(frame, 100)
        assert failed(commands) == [("invalid_input", None, fields.get("input", ""))]
        assert f"'{named}'" in frames(commands)[0]["error"]["message"]  # type: ignore[index]
        assert not any(isinstance(command, Stop) for command in commands)

    def test_a_response_that_this_connection_does_not_know(self, connection: WebSocketSession) -> None:
        begun(connection)
        connection.receive(*create(input="it waits, and has no id yet"))
        assert failed(steer(connection, response_id="resp_other")) == [("response_not_found", None, "Faster!")]

    @pytest.mark.parametrize(
        ("status", "code"),
        [
            (Status.COMPLETED, "response_already_completed"),
            (Status.INCOMPLETE, "response_not_active"),
            (Status.FAILED, "response_not_active"),
            (Status.CANCELLED, "response_not_active"),
        ],
    )
    def test_one_that_has_ended(self, status: Status, code: str, connection: WebSocketSession) -> None:
        end(connection, begun(connection), status=status)
        assert failed(steer(connection)) == [(code, None, "Faster!")]

    @pytest.mark.parametrize(
        "fields",
        [
            {"conversation": "conv_1"},
            {"conversation": {"id": "conv_1"}},
            {"context_management": [{"type": "compaction"}]},
            {"generate": False},
            {"prompt_cache_options": {"prewarm": True}},
        ],
    )
    def test_what_cannot_be_steered(self, fields: dict[str, object], connection: WebSocketSession) -> None:
        begun(connection, **fields)
        assert failed(steer(connection)) == [("steering_not_supported", None, "Faster!")]

    @pytest.mark.parametrize("limits", [{"max_steers": 2}, {"websocket_max_state_bytes": 250}])
    def test_too_many(self, limits: dict[str, int]) -> None:
        connection = session(**limits)  # type: ignore[arg-type]
        first = begun(connection)
        for number in range(2):
            assert failed(steer(connection, str(number))) == []
        assert failed(steer(connection, "2")) == [("too_many_pending_steers", None, "2")]
        [successor] = started(end(connection, first))
        assert len(successor.steers) == 2

    @pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED])
    def test_a_response_that_cannot_be_continued_gives_it_back(self, status: Status) -> None:
        connection = session()
        first = begun(connection, lane="a")
        steer(connection, "one")
        steer(connection, "two")
        commands = end(connection, first, status=status)
        assert failed(commands) == [
            ("successor_creation_failed", "steer_1", "one"),
            ("successor_creation_failed", "steer_2", "two"),
        ]
        assert {command.lane for command in commands if isinstance(command, Reply)} == {"a"}

    @pytest.mark.parametrize("error", [invalid_request("Too long."), overloaded("Away.", retry_after=1)])
    def test_a_successor_that_cannot_be_created_gives_it_back_and_the_parent_stays(self, error: object) -> None:
        connection = session()
        first = steered(connection)
        [successor] = started(end(connection, first))
        connection.receive(*create(input="next"))
        commands = connection.refused(successor, error)  # type: ignore[arg-type]
        assert failed(commands) == [("successor_creation_failed", "steer_1", "Faster!")]
        assert codes(commands) == [], "its client sent no such create"
        assert error.message in frames(commands)[0]["error"]["message"]  # type: ignore[attr-defined, index]
        assert connection.recall("resp_1") is not None
        assert len(started(commands)) == 1, "the lane goes on"

    def test_at_the_end_of_the_connections_life(self, connection: WebSocketSession) -> None:
        first = begun(connection)
        steer(connection, "in time")
        connection.tick(1060)
        assert failed(steer(connection, "late")) == [("successor_creation_failed", None, "late")]
        commands = end(connection, first)
        assert failed(commands) == [("successor_creation_failed", "steer_1", "in time")]
        assert started(commands) == []
        assert isinstance(commands[-1], Close), "the input comes back before the end"


class TestInterrupt:
    @pytest.mark.parametrize(
        ("mode", "reason"), [({}, StopReason.INTERRUPTED), ({"mode": "discard_partial_items"}, StopReason.DISCARDED)]
    )
    def test_it_stops_the_response_and_says_so_if_it_was_in_time(
        self, mode: dict[str, str], reason: StopReason, connection: WebSocketSession
    ) -> None:
        first = begun(connection, lane="a")
        frame = {"type": "response.interrupt", "response_id": "resp_1", **mode}
        [stop] = connection.receive(frame, 10)
        assert isinstance(stop, Stop)
        assert (stop.lane, stop.reason) == ("a", reason)
        assert stop.accepted == {"type": "response.interrupt.accepted", "response_id": "resp_1"}
        assert stop.failed["error"]["code"] == "response_already_completed"  # type: ignore[index]
        [again] = frames(connection.receive(frame, 10))
        assert again["error"]["code"] == "response_not_active"  # type: ignore[index]
        assert failed(steer(connection)) == [("response_not_active", None, "Faster!")]
        end(connection, first)
        [following] = started(connection.receive(*create("a", previous_response_id="resp_1")))
        assert following.parent is not None

    def test_what_was_said_before_is_applied_behind_it(self, connection: WebSocketSession) -> None:
        first = steered(connection)
        connection.receive({"type": "response.interrupt", "response_id": "resp_1"}, 10)
        assert len(started(end(connection, first))) == 1

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({}, "invalid_input"),
            ({"response_id": 7}, "invalid_input"),
            ({"response_id": "resp_1", "mode": "gently"}, "invalid_input"),
            ({"response_id": "resp_9"}, "response_not_found"),
            ({"response_id": "resp_0"}, "response_already_completed"),
        ],
    )
    def test_it_fails(self, fields: dict[str, object], code: str, connection: WebSocketSession) -> None:
        end(connection, begun(connection, "resp_0"), "resp_0", Status.COMPLETED)
        begun(connection)
        [answer] = frames(connection.receive({"type": "response.interrupt", **fields}, 10))
        assert (answer["type"], answer["error"]["code"]) == ("response.interrupt.failed", code)  # type: ignore[index]
        assert isinstance(answer["response_id"], str)


class TestCancel:
    def test_it_stops_the_response(self, connection: WebSocketSession) -> None:
        begun(connection, lane="a")
        frame = {"type": "response.cancel", "response_id": "resp_1"}
        assert connection.receive(frame, 10) == [Stop("a", StopReason.CANCELLED)]

    def test_one_that_has_just_ended_is_not_an_error(self, connection: WebSocketSession) -> None:
        end(connection, begun(connection), status=Status.COMPLETED)
        assert connection.receive({"type": "response.cancel", "response_id": "resp_1"}, 10) == []

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({}, (400, "missing_required_parameter", None)),
            ({"response_id": 7}, (400, "invalid_type", None)),
            ({"response_id": "resp_9"}, (404, None, None)),
        ],
    )
    def test_it_is_refused(self, fields: dict[str, object], expected: object, connection: WebSocketSession) -> None:
        begun(connection)
        assert codes(connection.receive({"type": "response.cancel", **fields}, 10)) == [expected]


class TestInject:
    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({"input": [OUTPUT]}, (400, "missing_required_parameter", "response_id")),
            ({"response_id": 7, "input": [OUTPUT]}, (400, "invalid_type", "response_id")),
            ({"response_id": "resp_1"}, (400, "missing_required_parameter", "input")),
            ({"response_id": "resp_1", "input": []}, (400, "invalid_value", "input")),
            ({"response_id": "resp_1", "input": "hi"}, (400, "invalid_value", "input")),
            ({"response_id": "resp_1", "input": [{"role": "user"}]}, (400, "invalid_value", "input[0].type")),
        ],
    )
    def test_it_is_refused(self, fields: dict[str, object], expected: object, connection: WebSocketSession) -> None:
        begun(connection)
        (answer,) = frames(connection.receive({"type": "response.inject", **fields}, 10))
        error: Any = answer["error"]
        assert (answer["status"], error["code"], error["param"]) == expected


def test_only_so_many_ended_responses_are_remembered() -> None:
    connection = session(SessionSettings())
    for number in range(70):
        end(connection, begun(connection, f"resp_{number}"), f"resp_{number}", Status.COMPLETED)
    assert failed(steer(connection, response_id="resp_69"))[0][0] == "response_already_completed"
    assert failed(steer(connection, response_id="resp_0"))[0][0] == "response_not_found"


class TestPending:
    def test_it_waits_for_what_the_client_has_to_give(self, connection: WebSocketSession) -> None:
        first = begun(connection, lane="a")
        for given in ("one", "two"):
            steer(connection, given)
        commands = end(connection, first, status=Status.COMPLETED, output=(CALL,))
        assert started(commands) == []
        assert frames(commands) == [
            {
                "type": "response.steer.pending",
                "reason": "waiting_for_required_input",
                "required_input": [STUB],
                "steer": {"id": f"steer_{number}", "previous_response_id": "resp_1"},
            }
            for number in (1, 2)
        ]
        own = {"input": [OUTPUT], "previous_response_id": "resp_1", "temperature": 0.1}
        [following] = started(connection.receive(*create("a", **own)))
        assert not following.is_successor
        assert following.fields["temperature"] == 0.1
        *steered, output = following.fields["input"]  # type: ignore[misc]
        assert [message["content"] for message in steered] == ["one", "two"]
        assert output == OUTPUT
        connection.started(following, "resp_2")
        assert started(end(connection, following, "resp_2")) == [], "it is applied once"

    @pytest.mark.parametrize(
        ("lane", "fields"),
        [
            ("b", {"previous_response_id": "resp_1"}),
            ("a", {"previous_response_id": "resp_0"}),
            ("a", {}),
        ],
    )
    def test_another_create_does_not_get_it(self, lane: str, fields: dict[str, object]) -> None:
        connection = session()
        first = steered(connection, lane="a")
        end(connection, first, status=Status.COMPLETED, output=(CALL,))
        [other] = started(connection.receive(*create(lane, input=[OUTPUT], **fields)))
        assert other.fields["input"] == [OUTPUT]
        assert other.steers == ()

    def test_a_create_that_came_first_gets_it_and_nothing_is_pending(self, connection: WebSocketSession) -> None:
        first = steered(connection)
        connection.receive(*create(input=[OUTPUT], previous_response_id="resp_1"))
        commands = end(connection, first, status=Status.COMPLETED, output=(CALL,))
        assert frames(commands) == []
        [following] = started(commands)
        assert len(following.fields["input"]) == 2  # type: ignore[arg-type]

    @pytest.mark.parametrize("given", ["as a string", None])
    def test_input_that_is_not_a_list(self, given: object) -> None:
        connection = session()
        first = steered(connection)
        end(connection, first, status=Status.COMPLETED, output=(CALL,))
        named = {} if given is None else {"input": given}
        [following] = started(connection.receive(*create(previous_response_id="resp_1", **named)))
        contents = [message["content"] for message in following.fields["input"]]  # type: ignore[attr-defined, index]
        assert contents == ["Faster!", *([given] if given else [])]

    def test_a_create_that_is_refused_leaves_it_for_the_next(self, connection: WebSocketSession) -> None:
        first = steered(connection)
        end(connection, first, status=Status.COMPLETED, output=(CALL,))
        for _ in range(2):
            [following] = started(connection.receive(*create(input=[OUTPUT], previous_response_id="resp_1")))
            assert len(following.fields["input"]) == 2  # type: ignore[arg-type]
            commands = connection.refused(following, invalid_request("No.", param="input"))
            assert types(commands) == ["error"]

    def test_a_full_queue_leaves_it_too(self) -> None:
        connection = session(websocket_max_queued=0)
        first = steered(connection)
        end(connection, first, status=Status.COMPLETED, output=(CALL,))
        blocking = begun(connection, "resp_2")
        own = create(input=[OUTPUT], previous_response_id="resp_1")
        assert codes(connection.receive(*own)) == [(429, "rate_limit_exceeded", None)]
        end(connection, blocking, "resp_2")
        [following] = started(connection.receive(*own))
        assert len(following.fields["input"]) == 2  # type: ignore[arg-type]

    def test_one_response_a_lane_so_an_older_one_comes_back(self, connection: WebSocketSession) -> None:
        for number in (1, 2):
            each = begun(connection, f"resp_{number}")
            steer(connection, f"of {number}", f"resp_{number}")
            commands = end(connection, each, f"resp_{number}", Status.COMPLETED, (CALL,))
        assert failed(commands) == [("response_not_active", "steer_1", "of 1")]
        assert types(commands)[-1] == "response.steer.pending"

    @pytest.mark.parametrize(
        ("call", "stub"),
        [
            ({"type": "custom_tool_call", "name": "sql"}, {"type": "custom_tool_call_output"}),
            ({"type": "shell_call"}, {"type": "shell_call_output"}),
            ({"type": "local_shell_call"}, {"type": "local_shell_call_output"}),
            ({"type": "apply_patch_call"}, {"type": "apply_patch_call_output"}),
            ({"type": "tool_search_call"}, {"type": "tool_search_output", "execution": "client"}),
        ],
    )
    def test_the_stub_of_each_kind(self, call: JsonObject, stub: JsonObject, connection: WebSocketSession) -> None:
        first = steered(connection)
        whole = {**call, "call_id": "call_2", "status": "completed"}
        [pending] = frames(end(connection, first, status=Status.COMPLETED, output=(whole,)))
        assert pending["required_input"] == [{**stub, "call_id": "call_2"}]

    @pytest.mark.parametrize(
        "output",
        [
            (CALL, OUTPUT),
            ({**CALL, "status": "incomplete"},),
            ({**CALL, "async": True},),
            ({"type": "web_search_call", "id": "ws_1", "status": "completed"},),
            ({"type": "message", "status": "completed"},),
        ],
    )
    def test_what_requires_nothing(self, output: tuple[JsonObject, ...], connection: WebSocketSession) -> None:
        first = steered(connection)
        assert len(started(end(connection, first, status=Status.COMPLETED, output=output))) == 1
