"""`ResponseStream`: what may come when, and what each kind of item looks like while it is written."""

from collections.abc import Callable

import pytest

from engine.formats.base import ItemEnded, ItemKind, ItemStarted, MessageKind, RenderedMessage, Text, as_tokens
from responses_app.protocol.output.stream import LocalProtocolError, ResponseStream
from responses_app.protocol.requests.resources import Ending, Status
from tests.kit.laws import new_stream
from tests.kit.plain_format import FORMAT as PLAIN
from tests.unit.protocol.machines import PythonBuilder, machine

MESSAGE = RenderedMessage(MessageKind.COMMENTARY, as_tokens([1, 2]))
END = ItemEnded(MESSAGE)
CUT = ItemEnded(MESSAGE, truncated=True)
ANSWER = ItemStarted(ItemKind.ANSWER)
PYTHON = ItemStarted(ItemKind.HOSTED_CALL, "python")
DONE = Ending(status=Status.COMPLETED, completed_at=1)


def started(hosted: bool = False) -> ResponseStream:
    stream = machine(PLAIN, hosted=hosted).stream
    stream.start()
    return stream


def item_of(kind: ItemKind, name: str | None = None, text: str = "ab", end: ItemEnded = END) -> dict[str, object]:
    stream = started()
    stream.receive(ItemStarted(kind, name))
    stream.receive(Text(text))
    stream.receive(end)
    [item] = stream.output
    return item


BEFORE_THE_START: list[Callable[[ResponseStream], object]] = [
    lambda stream: stream.receive(ANSWER),
    lambda stream: stream.begin_compaction(),
    lambda stream: stream.finish(DONE),
]
WHILE_NOTHING_IS_OPEN: list[Callable[[ResponseStream], object]] = [
    lambda stream: stream.start(),
    lambda stream: stream.leave_queue(),
    lambda stream: stream.receive(Text("a")),
    lambda stream: stream.receive(END),
    lambda stream: stream.receive("no event"),  # type: ignore[arg-type]
    lambda stream: stream.end_compaction("sealed"),
    lambda stream: stream.end_call("2", failed=False),
]
INSIDE_AN_ITEM: list[Callable[[ResponseStream], object]] = [
    lambda stream: stream.receive(ANSWER),
    lambda stream: stream.begin_compaction(),
    lambda stream: stream.end_compaction("sealed"),
    lambda stream: stream.end_call("2", failed=False),
]


class TestOrder:
    """What cannot be is a bug of this server, and is told at once."""

    @pytest.mark.parametrize("wrong", BEFORE_THE_START)
    def test_before_the_start(self, wrong: Callable[[ResponseStream], object]) -> None:
        with pytest.raises(LocalProtocolError):
            wrong(new_stream())

    @pytest.mark.parametrize("wrong", WHILE_NOTHING_IS_OPEN)
    def test_while_nothing_is_open(self, wrong: Callable[[ResponseStream], object]) -> None:
        with pytest.raises(LocalProtocolError):
            wrong(started(hosted=True))

    @pytest.mark.parametrize("wrong", INSIDE_AN_ITEM)
    def test_inside_an_item(self, wrong: Callable[[ResponseStream], object]) -> None:
        stream = started(hosted=True)
        stream.receive(ANSWER)
        with pytest.raises(LocalProtocolError):
            wrong(stream)

    def test_a_call_returns_only_after_it_was_called(self) -> None:
        stream = started(hosted=True)
        stream.receive(PYTHON)
        with pytest.raises(LocalProtocolError):
            stream.end_call("2", failed=False)
        stream.receive(END)
        stream.end_call("2", failed=False)
        with pytest.raises(LocalProtocolError):
            stream.end_call("2", failed=False)

    def test_after_the_end(self) -> None:
        stream = started()
        stream.finish(DONE)
        for wrong in (*WHILE_NOTHING_IS_OPEN, lambda stream: stream.finish(DONE), BEFORE_THE_START[0]):
            with pytest.raises(LocalProtocolError):
                wrong(stream)

    def test_it_has_begun_with_its_first_event(self) -> None:
        stream = new_stream()
        assert not stream.has_begun
        stream.enqueue()
        assert stream.has_begun
        assert stream.snapshot()["status"] == "queued"
        warm_up = new_stream()
        assert len(warm_up.start(warm_up=True)) == 1
        assert warm_up.has_begun


class TestItems:
    def test_a_message_that_is_cut_is_incomplete_and_not_fed_back_as_one_that_was_said(self) -> None:
        stream = started()
        stream.receive(ANSWER)
        assert stream.is_open
        assert [event.type for event in stream.close()][-1] == "response.output_item.done"
        assert not stream.is_open
        assert stream.output[0]["status"] == "incomplete"
        assert stream.close() == []

    @pytest.mark.parametrize(("end", "status"), [(END, "completed"), (CUT, "incomplete")])
    def test_what_the_model_read_of_an_item_is_remembered_with_it(self, end: ItemEnded, status: str) -> None:
        stream = started()
        for text in ("a", "b"):
            stream.receive(ANSWER)
            stream.receive(Text(text))
            stream.receive(end)
        assert [item["status"] for item in stream.output] == [status, status]
        assert [each.id for each in stream.sampled] == [item["id"] for item in stream.output]
        assert stream.messages == [MESSAGE, MESSAGE]

    def test_an_answer(self) -> None:
        item = item_of(ItemKind.ANSWER)
        part = {"type": "output_text", "text": "ab", "annotations": [], "logprobs": []}
        assert item == {
            "id": item["id"],
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "phase": "final_answer",
            "content": [part],
        }
        assert item_of(ItemKind.PREAMBLE)["phase"] == "commentary"

    def test_a_thought(self) -> None:
        item = item_of(ItemKind.REASONING)
        content = [{"type": "reasoning_text", "text": "ab"}]
        assert item == {"id": item["id"], "type": "reasoning", "status": "completed", "summary": [], "content": content}

    def test_a_call(self) -> None:
        item = item_of(ItemKind.CALL, "f")
        assert (item["type"], item["name"], item["arguments"]) == ("function_call", "f", "ab")
        assert item["call_id"] != item["id"]

    def test_a_call_of_what_is_not_there_is_kept_as_a_thought_and_known_until_the_next_item(self) -> None:
        stream = started()
        stream.receive(PYTHON)
        stream.receive(END)
        assert stream.output[0]["type"] == "reasoning"
        assert (stream.called.last_unknown, stream.called.unknown) == ("python", ["python"])
        stream.receive(ANSWER)
        assert (stream.called.last_unknown, stream.called.unknown) == (None, ["python"])

    def test_a_tools_item_is_open_from_its_call_until_it_returns(self) -> None:
        stream = started(hosted=True)
        assert stream.called.hosts
        assert stream.called.is_hosted("python")
        assert not stream.called.is_hosted("browser")
        stream.receive(PYTHON)
        stream.receive(Text("1+1"))
        assert stream.hosted_call is None
        stream.receive(END)
        assert (stream.hosted_call.name, stream.hosted_call.arguments) == ("python", "1+1")  # type: ignore[union-attr]
        assert stream.output == []
        stream.end_call({}, failed=True)
        assert stream.hosted_call is None
        assert stream.output[0]["status"] == "failed"

    def test_a_tools_call_that_is_cut_is_not_made(self) -> None:
        stream = started(hosted=True)
        stream.receive(PYTHON)
        stream.receive(CUT)
        assert stream.hosted_call is None
        assert stream.output[0]["status"] == "incomplete"

    def test_what_a_tool_returned_is_its_items(self) -> None:
        item = PythonBuilder(lambda prefix: f"{prefix}1")
        response = started().snapshot()
        stream = ResponseStream(response, new_id=lambda prefix: f"{prefix}1", hosted={"python": lambda new_id: item})
        stream.start()
        for each in (PYTHON, END):
            stream.receive(each)
        assert item.shown == {}
        stream.end_call({"output": "2"}, failed=False)
        assert item.shown == {"output": "2"}


class TestTheEnd:
    def test_a_failure_leaves_the_open_item_out_any_other_end_closes_it_and_only_one_completes(self) -> None:
        for status in (Status.COMPLETED, Status.INCOMPLETE, Status.FAILED, Status.CANCELLED):
            stream = started()
            stream.receive(ANSWER)
            events = stream.finish(Ending(status=status, completed_at=7))
            assert stream.snapshot()["completed_at"] == (7 if status is Status.COMPLETED else None)
            assert len(stream.output) == (0 if status is Status.FAILED else 1)
            assert (len(events) == 1) == (status is Status.FAILED)
            assert not stream.is_open
