"""The shell: commands that the model writes run in a container, and what they print is told as they do.

It has the containers of the code interpreter: a chain that uses both has one for both, with the same files. So what a
request says of its environment is read as the code interpreter's `container` (`as_interpreter`).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import ValidationError

from engine.formats.base import FunctionTool, ToolNamespace
from engine.types import JsonSchema
from responses_app.extensions.containers.code_interpreter import LOST, CodeInterpreterTool, loss_of
from responses_app.extensions.containers.contents import network_text, with_copied
from responses_app.extensions.containers.sandbox.cells import MAX_COMMANDS, MAX_TOLD
from responses_app.extensions.containers.sandbox.records import CellEnd, CommandsRun, ContainerNotFound, SandboxError
from responses_app.extensions.containers.sandbox.settings import SandboxSettings
from responses_app.protocol.items.calls import CLIENT_KINDS, ShellAction
from responses_app.protocol.items.offers import SHELL, Offer, OfferedTool
from responses_app.protocol.output.citations import state_of
from responses_app.protocol.requests.server_tools import SHELL_ITEM
from responses_app.tools.base import BaseTool, ToolCall, ToolFailed, ToolResult, ToolUse

logger = logging.getLogger("respsite.tools")

_NAMESPACE, _, _FUNCTION = SHELL.partition(".")
_KIND = CLIENT_KINDS["shell"]
_ABOUT = (
    "Runs commands in a container of its own, with bash, and not on the user's machine. Files are kept in '/mnt/data', "
    "where the commands begin. Nothing can be typed in{offline}."
)
_OFFLINE = ", and there is no access to the internet"
_FUNCTION_ABOUT = (
    "Runs command lines, all at once: what is to run in order stands in one of them. They are stopped after "
    "{seconds:g} seconds, or after 'timeout_ms'."
)
_ENDINGS = {
    CellEnd.TOO_MUCH_OUTPUT: "[They printed too much and were stopped.]",
    CellEnd.TOO_MUCH_MEMORY: "[They took too much memory and were stopped.]",
    CellEnd.TOO_MUCH_DISK: "[They wrote too much and were stopped: variables and files are lost.]",
    CellEnd.STOPPED: "[They were stopped.]",
}
_STREAMS = ("stdout", "stderr")


class ShellTool(BaseTool):
    """Runs commands in the containers of the code interpreter."""

    kinds: ClassVar = ("shell",)

    def __init__(self, interpreter: CodeInterpreterTool, settings: SandboxSettings) -> None:
        self._interpreter = interpreter
        self._settings = settings

    def problem(self) -> str | None:
        return self._interpreter.problem()

    async def offer(self, use: ToolUse) -> Offer:
        container, has = await self._interpreter.opened(as_interpreter(use), "shell")
        about = _FUNCTION_ABOUT.format(seconds=self._settings.sandbox_call_seconds)
        functions = (FunctionTool(_FUNCTION, about, _KIND.shown),)
        environment = {"type": "container_reference", "container_id": container.id}
        tool = OfferedTool(name=SHELL, item=SHELL_ITEM, fields={"environment": environment})
        contents = {SHELL: JsonSchema(_KIND.schema)}
        offline = _OFFLINE if container.network is None else ""
        has = network_text(container.network, "") + has
        return Offer(ToolNamespace(_NAMESPACE, _ABOUT.format(offline=offline) + has, functions), [tool], contents)

    async def forget_response(self, use: ToolUse) -> None:
        await self._interpreter.forget_response(use)

    async def call(self, call: ToolCall) -> ToolResult:
        action = _action_of(call.arguments)
        printed = _Printed(call, len(action.commands))
        call = replace(call, use=as_interpreter(call.use))
        most = self._settings.sandbox_call_seconds
        seconds = most if action.timeout_ms is None else _within(action.timeout_ms, 1, int(most * 1000)) / 1000
        try:
            container = await self._interpreter.container(call.use)
            copied = await self._interpreter.provided(call, container)
            run = await self._interpreter.containers.run_commands(
                container.project,
                container.id,
                action.commands,
                seconds=seconds,
                most=MAX_TOLD if action.max_output_length is None else _within(action.max_output_length, 0, MAX_TOLD),
                report=printed.take,
            )
        except ContainerNotFound:
            raise _failure("the container has expired.") from None
        except SandboxError as problem:
            logger.warning("response %s: commands could not run: %s %s", call.use.response_id, problem, problem.detail)
            raise _failure(f"{problem}.") from None
        timed_out = run.execution.ended is CellEnd.TIMED_OUT
        lines = [*loss_of(call, container, run.begun_anew), *_notes_of(run)]
        text = "\n".join([*lines, printed.told(action.commands, run, seconds)])
        written = [(file.path, file.id) for file in run.files]
        state = with_copied(state_of(container.id, call.state, written), copied)
        outcomes = [
            {"type": "timeout"} if end.killed and timed_out else {"type": "exit", "exit_code": end.exit_code}
            for end in run.execution.commands
        ]
        return ToolResult(text, {"outcomes": outcomes}, run.execution.ended in _ENDINGS, state)


class _Printed:
    """The output of a call's commands; it is handed on as it comes."""

    def __init__(self, call: ToolCall, count: int) -> None:
        self._report = call.report
        self._texts: Sequence[Mapping[str, list[str]]] = [{each: [] for each in _STREAMS} for _ in range(count)]

    def take(self, fields: dict[str, Any]) -> None:
        """Take output of one of them."""
        for stream in _STREAMS:
            self._texts[fields["command_index"]][stream].append(fields.get(stream, ""))
        self._report(fields)

    def told(self, commands: Sequence[str], run: CommandsRun, seconds: float) -> str:
        """Return it as the model reads it."""
        timed_out = run.execution.ended is CellEnd.TIMED_OUT
        parts = []
        for command, texts, end in zip(commands, self._texts, run.execution.commands, strict=True):
            out, err = ("".join(texts[stream]) for stream in _STREAMS)
            lines = [f"$ {command}"] if len(commands) > 1 else []
            lines += [out.removesuffix("\n")] if out else []
            lines += [f"[stderr]\n{err.removesuffix(chr(10))}"] if err else []
            if end.killed and timed_out:
                lines.append(f"[It ran for longer than {seconds:g} seconds and was stopped.]")
            elif end.exit_code or not (out or err):
                lines.append(f"[exit code {end.exit_code}]")
            parts.append("\n".join(lines))
        return "\n\n".join(parts)


def as_interpreter(use: ToolUse) -> ToolUse:
    """Return a use of the shell as one of the code interpreter in the same container."""
    environment: Any = use.declared["environment"]
    container: object = environment.get("container_id")
    if environment["type"] == "container_auto":
        container = {**environment, "type": "auto"}
    return replace(use, declared={"type": "code_interpreter", "container": container})


def _action_of(arguments: str) -> ShellAction:
    """Read the arguments of a call. Raises `ToolFailed`."""
    try:
        action = ShellAction.model_validate_json(arguments)
    except ValidationError:
        raise _failure(
            "the arguments are not a JSON object with 'commands' (an array of strings), and 'timeout_ms' and "
            "'max_output_length' (integers), if wanted."
        ) from None
    if not 0 < len(action.commands) <= MAX_COMMANDS:
        raise _failure(f"a call has 1 to {MAX_COMMANDS} commands.")
    if any("\0" in command for command in action.commands):
        raise _failure("a command must not have a null character.")
    return action


def _within(number: int, least: int, most: int) -> int:
    """Return the number that is nearest to one of the model's, which may have any number of digits."""
    return max(least, min(number, most))


def _failure(text: str) -> ToolFailed:
    return ToolFailed(text, shown={"error": f"Error: {text}"})


def _notes_of(run: CommandsRun) -> list[str]:
    """Return notes for the model on how the commands ended, and on losses."""
    ended = run.execution.ended
    notes = [_ENDINGS[ended]] if ended in _ENDINGS else []
    return [*notes, LOST] if run.execution.variables_lost and ended is not CellEnd.TOO_MUCH_DISK else notes
