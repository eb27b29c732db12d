"""Commands that the model writes are told as it writes them, however its arguments are spelled and cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_app.protocol.items.calls import call_of, open_calls
from responses_app.protocol.items.offers import OfferedTool
from responses_app.protocol.items.tool_items import ReadCall, ReadOutput, read_tool_item
from responses_app.protocol.output.hosted_items import ShellCallBuilder, ShellOutputBuilder
from responses_app.protocol.output.shell_commands import CommandReader
from responses_app.protocol.prompt.rendering import called_tool
from tests.kit.laws import counting_ids

CONTAINER = {"type": "container_reference", "container_id": "cntr_1"}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def said_of(arguments: str, sizes: list[int]) -> tuple[list[str], list[Any]]:
    """Return the commands that a reader tells of, and the events."""
    reader, events, begin = CommandReader(), [], 0
    while begin < len(arguments):
        size = sizes[begin % len(sizes)]
        events += reader.read(arguments[begin : begin + size])
        begin += size
    return reader.commands, [*events, *reader.rest()]


@given(
    st.lists(texts, max_size=4),
    st.dictionaries(texts.filter(lambda name: name != "commands"), values, max_size=3),
    st.lists(st.integers(1, 7), min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_commands_are_told_as_they_are_written(
    commands: list[str], more: dict[str, Any], sizes: list[int], first: bool, ascii_only: bool
) -> None:
    own: dict[str, Any] = {"commands": commands}
    arguments = json.dumps({**own, **more} if first else {**more, **own}, ensure_ascii=ascii_only, indent=1)
    read, events = said_of(arguments, sizes)
    assert read == commands
    deltas = dict.fromkeys(range(len(commands)), "")
    whole = []
    for type, fields in events:
        if type.endswith("delta"):
            assert fields["delta"]
            deltas[fields["command_index"]] += fields["delta"]
        elif type.endswith("done"):
            whole.append(fields["command"])
    assert [whole, list(deltas.values())] == [commands, commands]


@given(st.text(max_size=40) | st.text('{}[]",:\\ucomands \ud83d\ude00', max_size=40))
def test_whatever_the_model_writes_breaks_nothing(arguments: str) -> None:
    read, events = said_of(arguments, [3])
    done = [fields["command"] for type, fields in events if type.endswith("done")]
    assert done == read


@pytest.mark.parametrize(
    ("written", "command"),
    [
        (r"\ud83d\ude00", "😀"),
        (r"\ud83d", "\ufffd"),
        (r"\ud83dx", "\ufffdx"),
        (r"\ude00", "\ufffd"),
        (r"\uzzzz", "\ufffd"),
    ],
)
def test_escapes(written: str, command: str) -> None:
    assert said_of(f'{{"commands": ["{written}"]}}', [1])[0] == [command]


def test_a_call_that_is_cut_has_what_was_written() -> None:
    call = ShellCallBuilder(counting_ids(), OfferedTool(name="shell.exec", item="shell_call"))
    call.told('{"commands": ["ls", "pw')
    assert [type.rpartition(".")[2] for type, _ in call.closed()] == ["added", "delta", "done"] * 2
    action: Any = call.item("incomplete")
    assert action["action"] == {"commands": ["ls", "pw"], "timeout_ms": None, "max_output_length": None}


def test_an_output_is_what_was_told_of_it() -> None:
    output = ShellOutputBuilder(counting_ids(), OfferedTool(name="shell.exec", item="shell_call"), "call_1", 5)
    output.progressed({"command_index": 1, "stdout": "a"})
    output.progressed({"command_index": 1, "stdout": "b", "stderr": "c"})
    cut: Any = output.item("incomplete")
    killed = {"type": "exit", "exit_code": 137}
    assert cut["output"] == [
        {"stdout": "", "stderr": "", "outcome": killed},
        {"stdout": "ab", "stderr": "c", "outcome": killed},
    ]
    outcomes = [{"type": "exit", "exit_code": 0}, {"type": "timeout"}]
    output.returned({"outcomes": outcomes}, failed=False)
    whole: Any = output.item("completed")
    assert [each["outcome"] for each in whole["output"]] == outcomes
    assert whole["max_output_length"] == 5
    assert [fields["output"] for _, fields in output.closed()] == [[each] for each in whole["output"]]


def test_a_call_that_a_server_ran_is_not_the_clients_to_answer() -> None:
    action = {"commands": ["ls"]}
    call = {"type": "shell_call", "call_id": "c1", "action": action, "environment": CONTAINER, "status": "completed"}
    output = {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "x"}]}
    assert open_calls([call]) == {}
    assert open_calls([{**call, "environment": None}]) == {"c1": "shell_call"}
    assert call_of(call) is not None
    tools = dict([called_tool(call) or ("", None)])
    (read,) = read_tool_item(call, tools.get)
    (printed,) = read_tool_item(output, tools.get)
    assert isinstance(read, ReadCall)
    assert isinstance(printed, ReadOutput)
    assert [(each.tool.name, each.tool.hosted) for each in (read, printed)] == [("shell.exec", True)] * 2
    (local,) = read_tool_item(output, lambda _: None)
    assert isinstance(local, ReadOutput)
    assert (local.tool.name, local.tool.hosted) == ("shell", False)
