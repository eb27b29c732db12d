"""`ResponseStream`: what may come when."""

from collections.abc import Callable

import pytest

from engine.formats.base import ItemEnded, ItemKind, ItemStarted, MessageKind, RenderedMessage, Text, as_tokens
from responses_app.protocol.output.stream import LocalProtocolError, ResponseStream
from responses_app.protocol.requests.resources import Ending, Status
from tests.kit.laws import new_stream
from tests.kit.plain_format import FORMAT as PLAIN
from tests.unit.protocol.machines import machine

MESSAGE = RenderedMessage(MessageKind.COMMENTARY, as_tokens([1, 2]))
END = ItemEnded(MESSAGE)
ANSWER = ItemStarted(ItemKind.ANSWER)
PYTHON = ItemStarted(ItemKind.HOSTED_CALL, "python")
DONE = Ending(status=Status.COMPLETED, completed_at=1)


def started(hosted: bool = False) -> ResponseStream:
    stream = machine(PLAIN, hosted=hosted).stream
    stream.start()
    return stream


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
