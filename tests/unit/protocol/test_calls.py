"""Calls and their outputs: what must be answered, what answers it, and OpenAI's sentences where they do not match."""

import pytest

from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.items import calls
from responses_app.protocol.items.calls import check_outputs, is_output, open_calls
from responses_app.protocol.prompt.chain import new_link

CALLS: dict[str, JsonObject] = {
    "function_call": {"name": "f", "arguments": "{}"},
    "custom_tool_call": {"name": "f", "input": ""},
    "local_shell_call": {"action": {}},
    "shell_call": {"action": {}},
    "apply_patch_call": {"operation": {}},
    "tool_search_call": {"arguments": {}},
}


def call(kind: str = "function_call", call_id: str = "c1", **fields: object) -> JsonObject:
    return {"type": kind, "call_id": call_id, **CALLS[kind], **fields}


def output(kind: str = "function_call_output", call_id: str | None = "c1", **fields: object) -> JsonObject:
    named: JsonObject = {} if call_id is None else {"call_id": call_id}
    return {"type": kind, **named, "output": "", **fields}


def problem(
    *items: JsonObject,
    before: list[JsonObject] | None = None,
    known: dict[str, str] | None = None,
    in_background: str = "",
) -> str | None:
    """Return what is wrong with a request's items."""
    try:
        check_outputs(items, before=before or [], known=known or {}, in_background=in_background.split())
    except ApiError as error:
        said = error.message.removesuffix(" Send it as an item of 'input'.")
        return said if (error.status, error.param) == (400, "input") else f"{error.status} {error.param}"
    return None


ANSWERS = {"tool_search_call": "tool_search_output", **{kind: f"{kind}_output" for kind in CALLS if kind[0] != "t"}}


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_needs_its_output(kind: str) -> None:
    spoken = kind.replace("_", " ")
    assert problem(call(kind)) == f"No tool output found for {spoken} c1."
    assert problem(call(kind), output(ANSWERS[kind])) is None
    assert problem(output(ANSWERS[kind]), call(kind)) is None, "in any order"
    assert (
        problem(call(kind), output(ANSWERS[kind], "c2"), call(kind, "c2")) == f"No tool output found for {spoken} c1."
    )
    assert problem(call(kind), output(ANSWERS[kind], None)) is None, "other servers' items name no call"
    assert problem(output(ANSWERS[kind]), known={"c1": kind}) is None
    assert problem(known={"c1": kind}) == f"No tool output found for {spoken} c1."
    assert problem(output(ANSWERS[kind]), before=[call(kind)]) is None


@pytest.mark.parametrize("odd", [["c1"], {"c1": 1}, 1, True])
def test_an_id_that_is_not_a_text_names_no_call(odd: object) -> None:
    named = {"type": "apply_patch_call_output", "call_id": odd, "status": "completed", "output": ""}
    assert problem(call("apply_patch_call"), named) is None, "as one without an id: it answers all of its kind"
    assert problem(named, known={"c1": "apply_patch_call"}) is None
    assert problem(call(), named) == "No tool output found for function call c1."


def test_an_asynchronous_call_needs_none_and_takes_any_number() -> None:
    later = call(**{"async": True})
    assert problem(later) is None
    assert problem(later, output(), output()) is None
    assert problem(call(), in_background="f") is None, "a client may leave the mark out: the tool has it"
    assert problem(call(namespace="ns"), in_background="f") is not None
    assert problem(call(namespace="ns"), in_background="ns.f") is None


def test_an_output_inside_the_call_is_one() -> None:
    assert problem(call(output="42")) is None
    assert problem(call(output="42"), known={"c1": "function_call"}) is None


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call", "shell_call"])
def test_an_echo_of_a_call_is_none(kind: str) -> None:
    """This server's own items are `completed`, and say nothing of an output."""
    said = f"No tool output found for {kind.replace('_', ' ')} c1."
    assert str(problem(call(kind, status="completed"), known={"c1": kind})) == said


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("custom_tool_call", "function_call_output"),
        ("function_call", "custom_tool_call_output"),
        ("function_call", "shell_call_output"),
        ("shell_call", "apply_patch_call_output"),
    ],
)
def test_an_output_of_the_wrong_kind_answers_nothing(kind: str, wrong: str) -> None:
    said = f"No tool call found for {wrong.removesuffix('_output').replace('_', ' ')} output with call_id c1."
    assert str(problem(call(kind), output(wrong))).startswith(said)
    assert str(problem(output(wrong), known={"c1": kind})).startswith(said)


def test_a_chain_knows_what_it_waits_for() -> None:
    def link(parent: object, *items: JsonObject, in_background: str = "") -> object:
        return new_link(
            parent,  # type: ignore[arg-type]
            response_id="resp_1",
            started_on="2026-01-01",
            messages=[],
            items=items,
            in_background=in_background.split(),
        )

    first = link(
        None,
        call(),
        call("shell_call", "c2"),
        call(call_id="c3", **{"async": True}),
        call(call_id="c4", name="g"),
        in_background="g",
    )
    assert first.awaited == {"c1": "function_call", "c2": "shell_call"}  # type: ignore[attr-defined]
    warm = link(first, output())
    assert warm.awaited == {"c2": "shell_call"}  # type: ignore[attr-defined]
    assert link(warm, output("shell_call_output", "c2")).awaited == {}  # type: ignore[attr-defined]
    assert open_calls([call(), output()]) == {}


def test_a_call_that_the_chain_has_already_is_not_asked_for_again() -> None:
    answered = {"made": lambda call_id: call_id == "c1"}
    assert open_calls([call()], **answered) == {}, "answered before"
    assert open_calls([call()], known={"c1": "function_call"}, **answered) == {"c1": "function_call"}
    assert open_calls([call(output="")], known={"c1": "function_call"}, **answered) == {}
    assert open_calls([call(call_id="c2")], **answered) == {"c2": "function_call"}


def test_what_answers_a_call_is_an_output() -> None:
    assert all(map(is_output, calls._ANSWERS))
    assert is_output("computer_call_output")  # which this server has no tool for
    assert not any(map(is_output, ("function_call", "shell_call", "message", "reasoning")))
