"""A program of the model's is run: what it calls is made, one call at a time, as calls of the model's are.

Each call is an input of the machine before it is made, so it stands in the log: a call that must not be repeated waits
for its permit there. The program itself is not kept. Where it has to go on, behind a pause or on another worker, it is
run from its beginning, and the calls that it has made before are answered with what came of them then:

    made before     a -> 1, b -> 2, c -> ?          ? nobody knows what came of it
    program         a  b  c  d                      a and b are answered from the record, d is made
                    a  x                            it diverges: it ends there, and the model is told
    functions       of the client's are made last of what is called together; where one has no answer, the program
                    pauses with all that it has called and has no answer for
"""

import logging
from collections.abc import Sequence

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.calls import json_text
from responses_app.protocol.items.offers import MAX_PROGRAM_CALLS, PROGRAM, MadeCall, outcome_of
from responses_app.protocol.items.spelling import is_same_json
from responses_app.protocol.response.steps import (
    CallTool,
    FunctionCalled,
    ProgramCalled,
    ProgramEnded,
    ProgramPaused,
    RunProgram,
    ToolReturned,
)
from responses_app.runs.driving.spans import end_tool, tool_span
from responses_app.runs.driving.tool_calls import (
    Effects,
    ProgramHalted,
    Tell,
    call_tool,
    cut_text,
    permitted_call,
    that_fits,
)
from responses_app.runs.plan.plan import RunPlan
from responses_app.runs.plan.settings import RunSettings

logger = logging.getLogger("respsite.runs")

_DIVERGED = (
    "Error: the program was run again, behind its calls, and called something else than before. What it calls must not "
    "depend on time or chance. Its calls were made; look before you make them again."
)
_NO_MORE = f"no more tools may be called: a program may make {MAX_PROGRAM_CALLS} calls, a response max_tool_calls"
_OF_AGENTS = "programs of a response with several agents cannot call the functions of the client"


async def run_tool(
    plan: RunPlan, command: CallTool | RunProgram, effects: Effects, settings: RunSettings, *, tell: Tell, said: int
) -> ToolReturned | ProgramEnded | ProgramPaused:
    """Make a call of a tool of this server, or run a program that makes some; what comes of it has room.

    `said` tokens stand behind the prompt. Raises `ClaimLost` where another worker has the response.
    """
    if isinstance(command, RunProgram):
        return await run_program(plan, command, effects, settings, tell=tell, said=said)
    returned = await permitted_call(plan, command, effects, settings, tell=tell)
    return await that_fits(returned, plan, command, said=said)


async def run_program(
    plan: RunPlan, command: RunProgram, effects: Effects, settings: RunSettings, *, tell: Tell, said: int
) -> ProgramEnded | ProgramPaused:
    """Run a program to its end, or until it pauses. Raises `ClaimLost` where another worker has the response."""
    calls = _Calls(plan, command.made, effects, settings, tell)
    call = CallTool(PROGRAM, command.code)
    entry = plan.tools.entry_of(PROGRAM)
    span = tool_span(plan, entry, call)
    try:
        returned = await call_tool(entry, call, tell=tell, settings=settings, answer=calls.answer)
        end_tool(plan, span, returned)
        if calls.left:
            raise _Diverged
    except _Paused as paused:
        return ProgramPaused(paused.calls)
    except _Diverged:
        logger.warning("response %s: a program diverged when it was run again", plan.response_id)
        returned = ToolReturned(_DIVERGED, failed=True)
    finally:
        span.end()
        effects.early.drop()  # a program that has ended asks for nothing more
    returned = await that_fits(returned, plan, call, said=said)
    return ProgramEnded(returned.text, returned.failed)


class _Paused(ProgramHalted):
    """A program waits for what comes of these calls."""

    def __init__(self, calls: Sequence[FunctionCalled]) -> None:
        super().__init__()
        self.calls = calls


class _Diverged(ProgramHalted):
    """A program that is run again does something else than before."""


class _Calls:
    """The calls of a program while it runs; `made` are those that it has made before."""

    def __init__(
        self, plan: RunPlan, made: Sequence[MadeCall], effects: Effects, settings: RunSettings, tell: Tell
    ) -> None:
        self._plan = plan
        self._effects = effects
        self._settings = settings
        self._tell = tell
        self._before = list(made)  # a copy: the list grows with each call
        self._answered = 0  # how many of them have been answered again
        self._count = 0  # of all calls
        self._begins_early = settings.server_tool_early != "off" and plan.request.max_tool_calls is None
        self._tools = {tool.name: tool for tool, _ in plan.tools.of_programs()}
        self._functions = {tool.called: tool for tool in plan.tools.functions}

    @property
    def left(self) -> int:
        """How many of the calls that were made before have not been made again."""
        return len(self._before) - self._answered

    async def answer(self, asked: JsonObject) -> JsonObject:
        """Answer one call, or several that were made together. Raises `ProgramHalted`."""
        together = asked.get("calls")
        if not isinstance(together, list):
            return (await self._all([asked]))[0]
        return {"answers": await self._all(together)}

    async def _all(self, calls: Sequence[object]) -> list[JsonObject]:
        answers: list[JsonObject | None] = [None] * len(calls)
        of_client: list[tuple[int, FunctionCalled]] = []
        ahead = 0
        for place, call in enumerate(calls):
            name, arguments = _named(call)
            function = self._functions.get(name) if isinstance(name, str) else None
            if function is None or not isinstance(arguments, dict):
                ahead = self._begin_behind(calls, place, ahead)
                answers[place] = await self._of_server(name, arguments)
            elif self._plan.agents is not None:
                answers[place] = {"error": _OF_AGENTS}
            elif self._count + len(of_client) >= MAX_PROGRAM_CALLS:
                answers[place] = {"error": _NO_MORE}
            else:
                of_client.append((place, FunctionCalled(function.name, function.namespace, json_text(arguments))))
        waiting: list[FunctionCalled] = []
        for place, each in of_client:
            self._count += 1
            if not self.left:
                waiting.append(each)
            else:
                called = self._functions[str(calls[place]["name"])].called  # type: ignore[index]  # a dict, as above
                answers[place] = self._again(called, each.arguments)
        if waiting:
            raise _Paused(waiting)
        return [answer if answer is not None else {"error": _NO_MORE} for answer in answers]

    def _begin_behind(self, calls: Sequence[object], place: int, ahead: int) -> int:
        """Begin the calls behind one that only reads, up to the first that may change something.

        Those up to `ahead` have begun; return up to where they have now.
        """
        ahead = max(ahead, place + 1)
        # Not what `max_tool_calls` may forbid, nor what is answered from the record.
        if not self._begins_early or self.left or self._reading(calls[place]) is None:
            return ahead
        while ahead < len(calls):
            call = calls[ahead]
            reading = self._reading(call)
            if reading is not None:
                if not self._effects.early.begin(self._plan, *reading):
                    break
            elif str(_named(call)[0]) not in self._functions:  # those are made last
                break
            ahead += 1
        return ahead

    def _reading(self, call: object) -> tuple[str, str] | None:
        """Return the name and the arguments of a call that only reads; None for any other."""
        name, arguments = _named(call)
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None or not tool.may_begin_early or not isinstance(arguments, dict):
            return None
        return tool.name, json_text(arguments)

    async def _of_server(self, name: object, arguments: object) -> JsonObject:
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None or not isinstance(arguments, dict):
            return {"error": f"{str(name)[:80]!r} cannot be called by a program, or not with these arguments"}
        if tool.asks:
            return {"error": f"each call of {tool.name!r} needs the user's approval: call it outside of a program"}
        written = json_text(arguments)
        if self.left:
            self._count += 1
            return self._again(tool.name, written)
        due = self._tell(ProgramCalled(tool, written))
        if not isinstance(due, CallTool):
            return {"error": _NO_MORE}
        self._count += 1
        returned = await permitted_call(self._plan, due, self._effects, self._settings, tell=self._tell)
        self._tell(returned)
        return self._bounded(outcome_of(returned.shown, text=returned.text, failed=returned.failed))

    def _again(self, name: str, arguments: str) -> JsonObject:
        """Answer a call as it was answered before. Raises `ProgramHalted` where another one was made then."""
        before = self._before[self._answered]
        if before.name != name or not is_same_json(before.arguments, arguments):
            raise _Diverged
        self._answered += 1
        if before.outcome is None:
            raise _Diverged  # what came of it is not known: nobody may guess
        return self._bounded(before.outcome)

    def _bounded(self, outcome: JsonObject) -> JsonObject:
        most = self._settings.server_tool_max_output_bytes
        return {name: cut_text(str(text), most) for name, text in outcome.items()}


def _named(call: object) -> tuple[object, object]:
    """Return the name and the arguments of a call, which may be anything that a program has sent."""
    return (call.get("name"), call.get("arguments")) if isinstance(call, dict) else (None, None)
