"""Programs that call tools: what the model is told of them, and those that wait for their client.

A program is Python, and calls a tool with `call_tool(NAME, ARGUMENTS)`. One that calls a function of the client's
pauses: the response ends with those calls, and the next one brings their outputs. Nothing of a paused program is kept
but its items, so it can go on anywhere and at any time:

    response 1   program P, function_call a (caller P)                  P needs what came of a: it pauses
    response 2   function_call_output a ─> P runs from its beginning, `a` is answered at once
                 function_call b (caller P)                             it pauses again
    response 3   function_call_output b ─> P runs from its beginning, `a` and `b` are answered at once
                 program_output P, message                              it has ended, and the model reads its output

`paused_programs` finds them among items, and `MadeCall` is a call that a program has made, with what came of it.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from engine.formats.base import FunctionTool, without_pictures
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.calls import called_name
from responses_app.protocol.items.offers import PROGRAM, mcp_name
from responses_app.protocol.items.outputs import body_and_omissions

KIND = "programmatic_tool_calling"  # the tool of a request
NAME = ITEM = PROGRAM  # what the model calls, and what its call becomes
OUTPUT_ITEM = "program_output"
MAX_CALLS = 1000  # of tools, by one program

_ABOUT = (
    "Runs a Python program that calls tools, and gives back what it prints. Use it for many calls, and for calls whose "
    "results you only need in part: you read nothing but what the program prints. Call a tool with "
    'call_tool("NAME", {"ARGUMENT": VALUE}): it returns what the tool gives, parsed where that is JSON, else as text, '
    "and raises ToolError where it fails. Calls that do not need each other's results are made together: "
    'call_tools([("NAME", {...}), ...]) returns a list of results, and "await call_tool_async(...)" is for '
    "asyncio.gather. A program may be run again from its beginning, with the same results: what it calls must not "
    "depend on time or chance. Each program begins anew, without variables, files or network. Tools that it can call:"
)


def about_programs(tools: Iterable[tuple[str, FunctionTool]]) -> str:
    """Return what the model is told of programs that may call these tools, by the names that they call."""
    lines = [f"- {name}: {' '.join(tool.description.split())} Arguments: {tool.schema}" for name, tool in tools]
    return "\n".join([_ABOUT, *(lines or ["- none"])])


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call that a program has made."""

    name: str  # what the program calls
    arguments: str  # JSON, as it was sent
    # `{"output"}` or `{"error"}`; None: not known yet, or never. An output is as the tool gave it, of any length.
    outcome: JsonObject | None = None
    call_id: str = ""  # by which its client answers it; "" where this server has made it


@dataclass(frozen=True, slots=True)
class PausedProgram:
    """A program that goes on once its client has said what came of its calls."""

    call_id: str  # of the item `program`
    code: str
    made: Sequence[MadeCall] = field(default=(), repr=False)  # in the order in which they were made


def program_of(item: JsonObject) -> str | None:
    """Return the `call_id` of the program that has made a call, or whose call an output answers; None for no program.

    Not every client sends `caller` back with an output.
    """
    caller = item.get("caller")
    if not isinstance(caller, dict) or caller.get("type") != "program":
        return None
    return str(caller.get("caller_id"))


def paused_programs(items: Iterable[JsonObject]) -> list[PausedProgram]:
    """Return the programs among items that have called the client and not ended."""
    programs: dict[str, PausedProgram] = {}
    calls: dict[str, dict[str, MadeCall]] = {}  # by programs, and by their ids: doubles count once
    outputs: dict[str, JsonObject] = {}
    for item in items:
        kind, call_id = item.get("type"), str(item.get("call_id"))
        if kind == ITEM:
            programs[call_id] = PausedProgram(call_id, str(item.get("code")))
        elif kind == OUTPUT_ITEM:
            programs.pop(call_id, None)
        elif kind == "function_call_output":
            outputs[call_id] = {"output": _plain(item.get("output"))}
        elif (program := program_of(item)) is not None and (call := _made(item)) is not None:
            calls.setdefault(program, {})[str(item.get("call_id") or item.get("id"))] = call
    paused: list[PausedProgram] = []
    for each in programs.values():
        made = calls.get(each.call_id, {}).values()
        if any(call.call_id for call in made):
            answered = tuple(
                replace(call, outcome=outputs[call.call_id]) if call.call_id and call.call_id in outputs else call
                for call in made
            )
            paused.append(PausedProgram(each.call_id, each.code, answered))
    return paused


def kept_of_programs(items: Sequence[JsonObject], known: Collection[str]) -> list[JsonObject]:
    """Return what later responses need of items to go on with paused programs.

    `known` are the ids of calls that programs before the items have made.
    """
    ended = {str(item.get("call_id")) for item in items if item.get("type") == OUTPUT_ITEM}
    begun = {str(item.get("call_id")) for item in items if item.get("type") == ITEM}
    kept: list[JsonObject] = []
    for item in items:
        kind, call_id, program = item.get("type"), str(item.get("call_id")), program_of(item)
        if kind == OUTPUT_ITEM and call_id not in begun:  # all that was kept of it is over
            kept.append({"type": kind, "call_id": call_id})
        elif kind == ITEM and call_id not in ended:
            kept.append(_only(item, "type", "call_id", "code"))
        elif kind == "function_call_output":
            if program not in ended and (program is not None or call_id in known):
                kept.append(_only(item, "type", "call_id", "output"))
        elif program is not None and program not in ended and _made(item) is not None:
            kept.append(_only(item, *_OF_CALL))
    return kept


_OF_CALL = ("type", "id", "call_id", "name", "namespace", "server_label", "arguments", "output", "error", "caller")


def is_of_program(item: JsonObject) -> bool:
    """Whether an item is one that `kept_of_programs` keeps."""
    return item.get("type") in (ITEM, OUTPUT_ITEM, "function_call_output") or program_of(item) is not None


def calls_of_programs(items: Iterable[JsonObject]) -> set[str]:
    """Return the ids of the calls among items that programs have made, and their client answers."""
    return {
        str(item["call_id"])
        for item in items
        if item.get("type") == "function_call" and "call_id" in item and program_of(item) is not None
    }


def _only(item: JsonObject, *names: str) -> JsonObject:
    return {name: item[name] for name in names if item.get(name) is not None}


def _made(item: JsonObject) -> MadeCall | None:
    arguments = str(item.get("arguments"))
    match item.get("type"):
        case "function_call":
            namespace = item.get("namespace")
            called = called_name(str(item.get("name")), namespace if isinstance(namespace, str) else None)
            return MadeCall(called, arguments, call_id=str(item.get("call_id")))
        case "mcp_call":
            name = mcp_name(str(item.get("server_label") or ""), str(item.get("name") or ""))
            return MadeCall(name, arguments, outcome_of(item))
    return None


def outcome_of(shown: JsonObject, *, text: str | None = None, failed: bool = False) -> JsonObject:
    """Return what a program reads of a call of this server's, by what the call's item shows; now, and in later legs.

    `text` is what came of the call where its item shows nothing.
    """
    error = shown.get("error")
    if error is not None:
        return {"error": _plain((error.get("content") or error.get("message")) if isinstance(error, dict) else error)}
    if shown.get("output") is not None:
        return {"error" if failed else "output": _plain(shown["output"])}
    return _CUT if text is None else {"error" if failed else "output": text}


_CUT: JsonObject = {"error": "the call was cut: what came of it is not known"}


def _plain(output: object) -> str:
    return without_pictures(body_and_omissions(output)[0])
