"""Steering of a response that ends with calls: it waits for the create with which the client answers them."""

import pytest

from responses_app.protocol.errors import JsonObject, invalid_request
from responses_app.protocol.requests.resources import Status
from tests.unit.protocol.sessions import codes, create, frames, session, started
from tests.unit.protocol.steers import CALL, OUTPUT, STUB, begun, end, failed, steer, types


class TestPending:
    def test_it_waits_for_what_the_client_has_to_give(self) -> None:
        connection = session()
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
        first = begun(connection, lane="a")
        steer(connection)
        end(connection, first, status=Status.COMPLETED, output=(CALL,))
        [other] = started(connection.receive(*create(lane, input=[OUTPUT], **fields)))
        assert other.fields["input"] == [OUTPUT]
        assert other.steers == ()

    def test_a_create_that_came_first_gets_it_and_nothing_is_pending(self) -> None:
        connection = session()
        first = begun(connection)
        steer(connection)
        connection.receive(*create(input=[OUTPUT], previous_response_id="resp_1"))
        commands = end(connection, first, status=Status.COMPLETED, output=(CALL,))
        assert frames(commands) == []
        [following] = started(commands)
        assert len(following.fields["input"]) == 2  # type: ignore[arg-type]

    @pytest.mark.parametrize("given", ["as a string", None])
    def test_input_that_is_not_a_list(self, given: object) -> None:
        connection = session()
        first = begun(connection)
        steer(connection)
        end(connection, first, status=Status.COMPLETED, output=(CALL,))
        named = {} if given is None else {"input": given}
        [following] = started(connection.receive(*create(previous_response_id="resp_1", **named)))
        contents = [message["content"] for message in following.fields["input"]]  # type: ignore[attr-defined, index]
        assert contents == ["Faster!", *([given] if given else [])]

    def test_a_create_that_is_refused_leaves_it_for_the_next(self) -> None:
        connection = session()
        first = begun(connection)
        steer(connection)
        end(connection, first, status=Status.COMPLETED, output=(CALL,))
        for _ in range(2):
            [following] = started(connection.receive(*create(input=[OUTPUT], previous_response_id="resp_1")))
            assert len(following.fields["input"]) == 2  # type: ignore[arg-type]
            commands = connection.refused(following, invalid_request("No.", param="input"))
            assert types(commands) == ["error"]

    def test_a_full_queue_leaves_it_too(self) -> None:
        connection = session(websocket_max_queued=0)
        first = begun(connection)
        steer(connection)
        end(connection, first, status=Status.COMPLETED, output=(CALL,))
        blocking = begun(connection, "resp_2")
        own = create(input=[OUTPUT], previous_response_id="resp_1")
        assert codes(connection.receive(*own)) == [(429, "rate_limit_exceeded", None)]
        end(connection, blocking, "resp_2")
        [following] = started(connection.receive(*own))
        assert len(following.fields["input"]) == 2  # type: ignore[arg-type]

    def test_one_response_a_lane_so_an_older_one_comes_back(self) -> None:
        connection = session()
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
    def test_the_stub_of_each_kind(self, call: JsonObject, stub: JsonObject) -> None:
        connection = session()
        first = begun(connection)
        steer(connection)
        whole = {**call, "call_id": "call_2", "status": "completed"}
        [pending] = frames(end(connection, first, status=Status.COMPLETED, output=(whole,)))
        assert pending["required_input"] == [{**stub, "call_id": "call_2"}]

    def test_a_call_that_the_user_is_to_approve_is_waited_for(self) -> None:
        connection = session()
        first = begun(connection)
        steer(connection)
        asked: JsonObject = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "f"}
        [pending] = frames(end(connection, first, status=Status.COMPLETED, output=(asked,)))
        assert pending["required_input"] == [{"type": "mcp_approval_response", "approval_request_id": "mcpr_1"}]

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
    def test_what_requires_nothing(self, output: tuple[JsonObject, ...]) -> None:
        connection = session()
        first = begun(connection)
        steer(connection)
        assert len(started(end(connection, first, status=Status.COMPLETED, output=output))) == 1
