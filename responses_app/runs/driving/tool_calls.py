"""A tool is called, within its time: one of this server's, or one of the client's, whose outputs are waited for.

Whatever comes of a tool of this server is something for the model to read: nothing that it does ends the response. It
is cut to what the model's context still holds, so that the response goes on all the same:

    room of an output = the context − everything that the model has read and said − what is left for its answer

Where not even a note has room, the next turn has none either, and the response ends as `incomplete`, as one does whose
answer comes to the end of the context.

`Effects`: what must not be done twice outside waits here until it is this worker's to do, and known to all others.

    a call that must not be repeated ── permit() ──> its asking is kept, by the present claim ──> it goes out
                                           ├ ClaimLost: another worker has the response; it never goes out here
                                           └ NotPermitted: it never goes out, and the model is told why

Example: A calls a tool and dies at once. B takes the response over and finds in its log that the call was asked for,
and not what came of it: it may have been made, so B does not make it. Were the call to go out before the log has it, B
would have the model sample it again, and make it twice.

A worker that stands still behind the answer of the store (its machine was paused) may be taken for dead meanwhile. So
it asks once more where much time has passed, and so do tools right before they send: `confirm()`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from engine import orjson
from engine.formats.base import ModelFormat, PicturePart
from responses_app.kit.clock import own_clock
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.media import as_reason, decoded
from responses_app.protocol.pictures import PictureUnreadable
from responses_app.protocol.response.steps import (
    CallTool,
    Command,
    Input,
    TimedOut,
    ToolProgressed,
    ToolReturned,
    WaitBegan,
)
from responses_app.runs.driving.early import EarlyCalls, Make
from responses_app.runs.driving.spans import end_tool, tool_span
from responses_app.runs.plan.plan import RunPlan, ToolEntry
from responses_app.runs.plan.settings import RunSettings
from responses_app.stores.base import ClaimLost
from responses_app.tools.base import (
    MAX_STATE_BYTES,
    BaseTool,
    ToolCall,
    ToolFailed,
    ToolImage,
    ToolResult,
    nothing_to_call,
    nothing_to_confirm,
)

MAX_SHOWN = 20  # images of one call; the model is told of the others
LOOK_SECONDS = 60.0  # for the images of one call, together
Look = Callable[[Sequence[str | ToolImage]], Awaitable[Sequence[str | PicturePart]]]


async def blind(seen: Sequence[str | ToolImage]) -> Sequence[str | PicturePart]:
    """See nothing: the model reads the output's text."""
    return ()


def look_of(plan: RunPlan) -> Look:
    """Return what shows the model of a plan the images of a tool: pictures where it sees, else the text says of them.

    They are kept before the model is shown them: the log has their digests alone, and another worker may go on.
    """
    if not plan.format.sees:
        return blind

    async def look(seen: Sequence[str | ToolImage]) -> Sequence[str | PicturePart]:
        if not any(isinstance(each, ToolImage) for each in seen):
            return ()
        left = MAX_SHOWN
        body: list[str | PicturePart] = []
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                for each in seen:
                    if isinstance(each, str):
                        body.append(each)
                        continue
                    left -= 1
                    body.append(await _picture(plan, each) if left >= 0 else _note("there are too many"))
        except TimeoutError:
            body.append(_note("it took too long to read"))
        return body

    return look


async def _picture(plan: RunPlan, image: ToolImage) -> str | PicturePart:
    """Return the picture that an image is, which is kept for the response, or a note."""
    try:
        content = image.data if isinstance(image.data, bytes) else await asyncio.to_thread(decoded, image.data)
        if content is None:
            return _note("its data is not base64")
        return PicturePart(await plan.pictures.show(content, owner=plan.response_id, stored=plan.stored))
    except PictureUnreadable as problem:
        return _note(as_reason(problem))
    except StoreError as problem:
        logger.warning("response %s: an image of a tool is not kept: %s", plan.response_id, problem)
        return _note("it cannot be kept now")


def _note(why: str) -> str:
    return f"[image omitted: {why}]"


logger = logging.getLogger("respsite.runs")

Tell = Callable[[Input], Command | None]  # gives the machine an input, and returns what is to be done next
Answer = Callable[[JsonObject], Awaitable[JsonObject]]  # see `ToolCall.answer`
KeepInputs = Callable[[Callable[[], bool]], Awaitable[bool]]  # see `RunPersistence.keep_inputs`
FRESH_SECONDS = 1.0  # for so long an answer of the store holds: no worker is taken for dead sooner


class NotPermitted(ToolFailed):
    """A call is not made, since it might be made twice; the text says why, for the model."""


class ProgramHalted(Exception):
    """A program is not to go on here: what it called cannot be answered now."""


def nothing_held() -> None:
    """Have no approvals, which could be lost."""


class Effects:
    """The permits of one run, which are kept as its inputs are.

    `may_wait`: this worker does not stop, nor has it lost the response.
    """

    def __init__(
        self, response_id: str, keep_inputs: KeepInputs, early: EarlyCalls, *, may_wait: Callable[[], bool]
    ) -> None:
        self.early = early  # what has none, and is begun before it is asked for
        self._response_id = response_id
        self._keep_inputs = keep_inputs
        self._may_wait = may_wait
        self.check_approvals: Callable[[], None] = nothing_held  # raises `NotPermitted`
        self._permitted_at = -FRESH_SECONDS  # by our own clock

    def leave_run(self) -> None:
        """Forget the run, which is over: it waits for nothing any more."""
        self._may_wait = lambda: False

    async def permit(self) -> None:
        """Return once what the response asks for may be done. Raises `NotPermitted`, and `ClaimLost`."""
        # The first answer of the store may come late, and be too old to rely on; then one more is asked for. A second
        # late one has to do.
        for _ in range(2):
            # The time before the question: the answer may be as old as that.
            asked_at = own_clock()
            if not await self._keep_inputs(self._may_wait):
                if not self._may_wait():
                    raise ClaimLost(f"{self._response_id} is left to another worker")
                raise NotPermitted("it must not run twice, and this server cannot write down now that it runs.")
            self.check_approvals()
            self._permitted_at = asked_at
            if self._is_fresh:
                return

    async def confirm(self) -> None:
        """Return once what was permitted may be done: at once, unless time has passed since. Raises as `permit`."""
        if not self._is_fresh:
            await self.permit()

    @property
    def _is_fresh(self) -> bool:
        return own_clock() - self._permitted_at < FRESH_SECONDS


TAKEOVER_SECONDS = 5.0  # how long a wait goes on at least behind a takeover, in which nobody took what the client gave
MAX_ANSWER = 1024  # tokens that are left for what the model says next, or a quarter of its context
MAX_TRIES = 8
LEFT_OUT = "[The output is left out: it does not fit into what is left of your context.]"
_FRAME = 32  # tokens of a message around a text, about, and of the note behind it
_CUT = (
    "Error: the server stopped while the tool ran. What it has done by then is not known, and it does not say that it "
    "can be run twice."
)
_BROKE = "Error: the tool broke."
_GONE = "Error: this tool is not there (any more)."
_TOO_LARGE = "Error: what the tool gave back is larger than this server takes."


def cut_call(command: CallTool) -> ToolReturned:
    """Return what came of a call that was under way when its worker died, where the tool is not `repeatable`."""
    return ToolReturned(_CUT, failed=True, shown=_error(command, _CUT))


def unmade_call(command: CallTool, why: str) -> ToolReturned:
    """Return what came of a call that was not made."""
    text = f"Error: the tool was not called: {why}"
    return ToolReturned(text, failed=True, shown=_error(command, text))


def _error(command: CallTool, text: str) -> JsonObject:
    """Return the typed `error` of a call's item: only the calls of MCP servers have one."""
    content = [{"type": "text", "text": text}]
    return {"error": {"type": "mcp_tool_execution_error", "content": content}} if command.tool else {}


async def permitted_call(
    plan: RunPlan, command: CallTool, effects: Effects, settings: RunSettings, *, tell: Callable[[Input], object]
) -> ToolReturned:
    """Call a tool as `call_tool` does; one that must not be called twice only once that is permitted.

    Raises `ClaimLost` where another worker has the response: then nothing was called.
    """
    entry, confirm = plan.tools.entry_of(command.name), nothing_to_confirm
    try:
        if entry is not None and not command.repeatable:
            await effects.permit()
            confirm = effects.confirm
        reads = plan.tools.reading(command.name) is not None
        with effects.early.around(reads=reads), tool_span(plan, entry, command) as span:
            look, make = look_of(plan), effects.early.make(entry, command) if reads and entry is not None else None
            returned = await call_tool(
                entry, command, tell=tell, settings=settings, confirm=confirm, look=look, make=make
            )
            end_tool(plan, span, returned)
            return returned
    except NotPermitted as why:
        return unmade_call(command, str(why))


async def call_tool(  # noqa: PLR0913 - what a tool may ask for while it works
    entry: ToolEntry | None,
    command: CallTool,
    *,
    tell: Callable[[Input], object],
    settings: RunSettings,
    confirm: Callable[[], Awaitable[None]] = nothing_to_confirm,
    look: Look = blind,
    answer: Answer = nothing_to_call,
    make: Make | None = None,
) -> ToolReturned:
    """Call a tool for a response; a cancellation ends its work, and nothing else is raised but what `confirm` raises.

    `entry` is None for a tool that is not there. `tell` gives the machine what the tool reports before it returns.
    `look` shows the model its images, `answer` makes what a program calls. `make` gives what was begun early; without
    it the tool is called now.
    """
    result = await _result(entry, command, tell, confirm, answer, make)
    most_shown = entry.tool.max_shown_bytes if entry is not None else BaseTool.max_shown_bytes
    most_bytes = settings.server_tool_max_output_bytes
    returned = _returned(result, command, most_bytes, most_shown)
    # What was cut is read, and not seen: its notes say that there are images.
    if returned.text != result.text or not (seen := await look(result.seen)):
        return returned
    return replace(returned, seen=seen)


async def _result(
    entry: ToolEntry | None,
    command: CallTool,
    tell: Callable[[Input], object],
    confirm: Callable[[], Awaitable[None]],
    answer: Answer,
    make: Make | None,
) -> ToolResult:
    if entry is None:
        return _failed(command, _GONE)
    tool, response_id = entry.tool, entry.use.response_id
    now = asyncio.get_running_loop().time
    # Two bounds at once: all of the call, and the time since its last report.
    ends_at = now() + tool.max_seconds
    try:
        async with asyncio.timeout_at(min(ends_at, now() + tool.idle_seconds)) as time_left:

            def report(fields: JsonObject) -> None:
                time_left.reschedule(min(ends_at, now() + tool.idle_seconds))
                tell(ToolProgressed(fields))

            call = ToolCall(
                use=entry.use,
                name=command.name,
                arguments=command.arguments,
                item_id=command.item_id,
                tool=command.tool,
                state=command.state,
                report=report,
                confirm=confirm,
                answer=answer,
            )
            return await (make or tool.call)(call)
    except TimeoutError:
        # Both raise `TimeoutError`; only `expired` tells them apart.
        if not time_left.expired():  # the tool's own, which it should have caught
            logger.exception("response %s: the tool %s broke", response_id, command.name)
            return _failed(command, _BROKE)
        seconds = tool.max_seconds if now() >= ends_at else tool.idle_seconds
        return _failed(command, f"Error: the tool did not answer within {seconds:g} s.")
    # `NotPermitted` is a `ToolFailed`, too: without this it would be taken for an answer of the tool.
    except (NotPermitted, ClaimLost, ProgramHalted):
        raise
    except ToolFailed as problem:
        text = f"Error: {problem}"
        return ToolResult(text, problem.shown or _error(command, text), failed=True)
    except Exception:
        logger.exception("response %s: the tool %s broke", response_id, command.name)
        return _failed(command, _BROKE)


def _failed(command: CallTool, text: str) -> ToolResult:
    return ToolResult(text, _error(command, text), failed=True)


def _returned(result: ToolResult, command: CallTool, max_output_bytes: int, max_shown_bytes: int) -> ToolReturned:
    """Bound what a tool gave back: what the model reads, what its item shows, and what later calls want to know."""
    try:
        # Sizes as they are sent and stored: compact JSON, in UTF-8.
        shown = len(orjson.dumps(result.shown))
        state = 0 if result.state is None else len(orjson.dumps(result.state))
    except (orjson.JSONEncodeError, TypeError):
        logger.exception("the tool %s gave back what is not JSON", command.name)
        return _returned(_failed(command, _BROKE), command, max_output_bytes, max_shown_bytes)
    if shown > max_shown_bytes:
        logger.warning("the tool %s gave back %d bytes for its item: too many", command.name, shown)
        return _returned(_failed(command, _TOO_LARGE), command, max_output_bytes, max_shown_bytes)
    if state > MAX_STATE_BYTES:
        logger.warning("the tool %s wants to keep %d bytes: too many", command.name, state)
    kept = result.state if state <= MAX_STATE_BYTES else None
    return ToolReturned(cut_text(result.text, max_output_bytes), result.failed, result.shown, kept)


def cut_text(text: str, max_bytes: int) -> str:
    """Return a text of at most `max_bytes` of UTF-8, and behind it a note of how much is missing, if anything is."""
    # A lone surrogate cannot be written as UTF-8: it becomes "?".
    written = text.encode(errors="replace")
    if len(written) <= max_bytes:
        return written.decode()
    # The cut may fall into the middle of a character: `ignore` drops its first bytes.
    return f"{written[:max_bytes].decode(errors='ignore')}\n[{len(written) - max_bytes} more bytes are left out]"


async def that_fits(returned: ToolReturned, plan: RunPlan, command: CallTool, *, said: int) -> ToolReturned:
    """Return what a tool gave back, with a text that the context holds behind the prompt and `said` more tokens."""
    room = room_behind(len(plan.generation.prompt_token_ids) + said, plan.writer.max_model_len)
    if surely_fits(returned.text, command, room=room):
        return returned
    text = await asyncio.to_thread(fitted, returned.text, command, plan.format, room=room)
    # What was cut is read, and not seen: its notes say that there are images.
    return returned if text == returned.text else replace(returned, text=text, seen=())


def room_behind(tokens: int, max_model_len: int) -> int:
    """Return how many tokens an output may have, behind so many in a context of this size; below 0 for none."""
    return max_model_len - tokens - min(MAX_ANSWER, max_model_len // 4)


def surely_fits(text: str, command: CallTool, *, room: int) -> bool:
    """Whether an output has room however it is cut into tokens: none is less than a byte."""
    # A character has at most 4 bytes of UTF-8.
    return 4 * len(text) + len(command.name) + _FRAME <= room


def fitted(text: str, command: CallTool, model_format: ModelFormat, *, room: int) -> str:
    """Return an output that has at most `room` tokens, if that can be: cut, with a note of how much is missing."""
    size = _tokens(text, command, model_format)
    if size <= room:
        return text
    kept = len(text.encode(errors="replace"))
    for _ in range(MAX_TRIES):
        # In proportion to the tokens that are too many, and 1/16 less: tokens are not spread evenly over a text.
        kept = kept * max(0, room - _FRAME) // size * 15 // 16
        if kept == 0:
            break
        shorter = cut_text(text, kept)
        size = _tokens(shorter, command, model_format)
        if size <= room:
            return shorter
    return LEFT_OUT


def _tokens(text: str, command: CallTool, model_format: ModelFormat) -> int:
    return len(model_format.output(command.name, text, hosted=True).tokens)


async def wait_until(until: float | None, seconds: float, *, now: float, tell: Callable[[Input], object]) -> TimedOut:
    """Return when the time is over: `seconds` from `now` on (Unix seconds), or what a takeover has left of it.

    `until` is when it ends, where the wait has begun on another worker. What is waited for comes by `Run.give`, or from
    another agent, and ends this.
    """
    if until is None:
        tell(WaitBegan(now + seconds))
        left = seconds
    else:  # it began on another worker
        left = max(until - now, TAKEOVER_SECONDS)
    await asyncio.sleep(left)
    return TimedOut(seconds)
