"""A program of the model's is run: what it calls is made, one call at a time, as calls of the model's are.

Each call is an input of the machine before it is made, so it stands in the log: a call that must not be repeated waits
for its permit there. The program itself is not kept. Where its worker dies behind a call, it has failed, and the model
is told: it may have changed something, so it does not begin anew.
"""

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.calls import json_text
from responses_app.protocol.items.programs import MAX_CALLS, NAME
from responses_app.protocol.response.steps import CallTool, ProgramCalled, ProgramEnded, RunProgram, ToolReturned
from responses_app.runs.driving.tool_calls import Effects, Tell, call_tool, permitted_call, that_fits
from responses_app.runs.plan.plan import RunPlan
from responses_app.runs.plan.settings import RunSettings

_CUT = "Error: the server stopped while the program ran. Some of its calls were made; look before you make them again."
_NO_MORE = f"no more tools may be called: a program may make {MAX_CALLS} calls, a response max_tool_calls"


async def run_tool(
    plan: RunPlan, command: CallTool | RunProgram, effects: Effects, settings: RunSettings, *, tell: Tell, said: int
) -> ToolReturned | ProgramEnded:
    """Make a call of a tool of this server, or run a program that makes some; what comes of it has room.

    `said` tokens stand behind the prompt. Raises `ClaimLost` where another worker has the response.
    """
    if isinstance(command, RunProgram):
        return await run_program(plan, command, effects, settings, tell=tell, said=said)
    returned = await permitted_call(plan, command, effects, settings, tell=tell)
    return await that_fits(returned, plan, command, said=said)


async def run_program(
    plan: RunPlan, command: RunProgram, effects: Effects, settings: RunSettings, *, tell: Tell, said: int
) -> ProgramEnded:
    """Run a program to its end. Raises `ClaimLost` where another worker has the response."""
    if command.calls:  # they were made on another worker
        return ProgramEnded(_CUT, failed=True)
    tools = {tool.name: tool for tool, _ in plan.tools.of_programs()}

    async def answer(asked: JsonObject) -> JsonObject:
        name, arguments = asked.get("name"), asked.get("arguments")
        tool = tools.get(name) if isinstance(name, str) else None
        if tool is None or not isinstance(arguments, dict):
            return {"error": f"{str(name)[:80]!r} cannot be called by a program, or not with these arguments"}
        if tool.asks:
            return {"error": f"each call of {tool.name!r} needs the user's approval: call it outside of a program"}
        due = tell(ProgramCalled(tool, json_text(arguments)))
        if not isinstance(due, CallTool):
            return {"error": _NO_MORE}
        returned = await permitted_call(plan, due, effects, settings, tell=tell)
        tell(returned)
        return {"error" if returned.failed else "output": returned.text}

    call = CallTool(NAME, command.code)
    returned = await call_tool(plan.tools.entry_of(NAME), call, tell=tell, settings=settings, answer=answer)
    returned = await that_fits(returned, plan, call, said=said)
    return ProgramEnded(returned.text, returned.failed)
