"""`CommandDriver`: does what the machine of a run wants: one thing after the other, and tells it what came of each.

    machine ── a command ──> driver ── generates, calls a tool, waits, seals, … ──┐
       ^                                                                          │
       └───────────────────────────── an input, by `tell` ────────────────────────┘

What comes from outside meanwhile may ask for something else: it is put into `interruption`, and takes the place of what
is being done.
"""

import asyncio
from collections.abc import Awaitable, Callable

from responses_app.protocol.output.endings import Ending
from responses_app.protocol.response.commands import Await, CallTool, Command, Generate, ListTools, Prefill, Seal
from responses_app.protocol.response.inputs import Input, Prefilled, Sealed
from responses_app.protocol.response.response import ResponseMachine
from responses_app.runs.driving.effects import Effects
from responses_app.runs.driving.generating import Generating
from responses_app.runs.driving.interruption import Interruption
from responses_app.runs.driving.serving_tools import ToolRunner
from responses_app.runs.driving.tool_calls import wait_for_outputs
from responses_app.runs.plan.compaction import compacted, go_on
from responses_app.runs.plan.plan import CompactionPlan, RunPlan


class CommandDriver:
    """Of one run, whose `plan` changes where a summary takes the place of what came before, and where a server has
    listed its tools: `tools` runs those.

    `effects` lets calls go out that must not be made twice. `tell` gives the machine an input, and returns what is to
    be done next. `finish` keeps the end that was decided, and tells it.
    """

    def __init__(
        self,
        plan: RunPlan,
        machine: ResponseMachine,
        generating: Generating,
        effects: Effects,
        *,
        tell: Callable[[Input], Command | None],
        finish: Callable[[Ending], Awaitable[None]],
    ) -> None:
        self.plan = plan
        self.interruption = Interruption()
        self.tools = ToolRunner(
            effects=effects,
            tell=tell,
            use=self.use,
            said=lambda: sum(len(each.tokens) for each in machine.stream.messages),
        )
        self._machine = machine
        self._generating = generating
        self._persistence = effects.persistence
        self._tell = tell
        self._finish = finish

    async def drive(self, command: Command | None) -> None:
        """Do what the machine wants, until it wants nothing any more. Raises whatever that raises."""
        while command is not None:
            try:
                command = await self._do(command)
            except asyncio.CancelledError:
                command = self.interruption.take()
                if command is None:
                    raise

    def go_on_from(self, summary: str) -> None:
        """Go on with the plan that begins with a summary, which another worker has sealed. Raises `PromptTooLong`."""
        self._replan(go_on(self.plan, self._compaction, compacted(self._compaction, summary)))

    async def _do(self, command: Command) -> Command | None:
        """Do one thing; return what is to be done next."""
        match command:
            case Generate():
                return await self._generating.generate(self.plan, command)
            case Prefill():
                await self._generating.prefill(self.plan)
                return self._tell(Prefilled())
            case Seal(summary=summary):
                return await self._seal(summary)
            case ListTools() | CallTool():
                return await self.tools.do(self.plan, command)
            case Await():
                now, seconds = self._persistence.now(), self.plan.tool_seconds
                return self._tell(await wait_for_outputs(command, seconds, now=now, tell=self._tell))
        await self._finish(command.ending)
        return None

    async def _seal(self, summary: str) -> Command | None:
        """Seal a summary, and go on with the plan that begins with it. Raises `PromptTooLong`."""
        compaction = self._compaction
        now = compacted(compaction, summary)
        plan = await asyncio.to_thread(go_on, self.plan, compaction, now)  # a summary may be long
        sealed = Sealed(compaction.seal(now.as_bytes()), plan.generation.sampling.max_output_tokens)
        command = self._tell(sealed)
        self._replan(plan)
        return command

    @property
    def _compaction(self) -> CompactionPlan:
        assert self.plan.compaction is not None, "only a plan with a compaction asks for a seal"
        return self.plan.compaction

    def use(self, plan: RunPlan) -> None:
        """Go on with another plan."""
        self.plan = plan
        self._persistence.replan(plan)

    def _replan(self, plan: RunPlan) -> None:
        """Go on with a plan whose chain begins with the summary that was just sealed."""
        self.use(plan)
        self._machine.stream.note_sampled(plan.input_messages[0])
