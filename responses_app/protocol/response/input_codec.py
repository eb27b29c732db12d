"""Inputs ⇄ bytes: what a log keeps of a run, about 4 bytes a token where each comes by itself.

A log is records, one behind the other, and so are two logs:

    1nnnnnnn  n × 3 bytes      n tokens (1 to 127) that came at once, and nothing else: nearly every record
    00000001  length  JSON     any other input; the length is 4 bytes, and the JSON is `[kind, …its fields]`
    00000010  agent   record   an input of an agent below the root, whose number is 2 bytes: the record that follows
    00000011  n  n × 3 bytes  n × 4 bytes   as the first kind, of a turn that a roll-out records: the tokens, and the
                               log probability of each as a 32-bit float; n is a byte

All numbers are little-endian. What a kind means never changes, since logs are read by later versions of this program.

The second kind of record may say when its input came, also one that has nothing but tokens: behind its JSON stand 22
characters of white space, which are the Unix milliseconds to the base of 4 (" " is 0, tab 1, line feed 2, carriage
return 3). Versions that know of no times read the same input all the same, since JSON ignores white space: so they can
take over what this version runs while both serve.
"""

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from typing import Any

from engine import orjson
from engine.formats.base import PicturePart
from engine.types import FinishReason, TokenLogprob, WeightsSpan
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.offers import AgentLimits, ApprovedCall, MadeCall, OfferedTool, PausedProgram
from responses_app.protocol.response.steps import (
    AgentsAllowed,
    Declared,
    Ended,
    Enqueued,
    Failed,
    FunctionCalled,
    Input,
    Mode,
    OfAgent,
    Offered,
    OutputGiven,
    OutputOptions,
    Prefilled,
    ProgramCalled,
    ProgramEnded,
    ProgramPaused,
    RunStarted,
    Sampled,
    Sealed,
    Stopped,
    StopReason,
    Summaries,
    TimedOut,
    ToolProgressed,
    ToolReturned,
    ToolsFound,
    ToolsListed,
    TurnBegan,
    WaitBegan,
)

_SHORT = 0x80  # the bit of a record of tokens alone: 0x81 is one token, 0xFF are 127
_LONG = 0x01  # the first byte of all other records; other values are left for later versions
_AGENT = 0x02  # the first byte before a record of an agent below the root
_RECORDED = 0x03  # the first byte of tokens with the log probabilities that a roll-out records
_AGENT_BYTES = 2  # of its number
_ONE_TOKEN = _SHORT | 1  # nearly every record: head and token are one number
_MAX_SHORT = 0x7F  # tokens in such a record
_TOKEN_BYTES = 3  # vocabularies have some 200,000 tokens; a larger id is written as JSON
_MAX_TOKEN = 1 << 8 * _TOKEN_BYTES  # the first id that does not fit
_LOGPROB_BYTES = 4
_ONE = struct.Struct("<f")
_HEAD_AND_TOKEN = struct.Struct("<I")
_DIGITS = b" \t\n\r"  # of a time
_TIME_DIGITS = 22  # 44 bits of milliseconds: until the year 2527
_FOUR_DIGITS = [bytes([_DIGITS[byte >> shift & 3] for shift in (6, 4, 2, 0)]) for byte in range(256)]  # of a byte
_FROM_DIGITS = bytes.maketrans(_DIGITS, b"0123")  # white space into the digits that `int(…, 4)` reads


class BrokenLog(Exception):
    """Bytes that no version of this program has written."""


def encode(inputs: Iterable[Input]) -> bytes:
    """Write inputs."""
    return b"".join(map(encode_one, inputs))


def decode(data: bytes) -> Iterator[Input]:
    """Read what `encode` wrote. Raises `BrokenLog`."""
    return (input for input, _ in decode_timed(data))


def decode_timed(data: bytes) -> Iterator[tuple[Input, int | None]]:
    """Read inputs with when they came, in Unix milliseconds; None where the log does not tell. Raises `BrokenLog`."""
    position, end, agent = 0, len(data), 0
    while position < end:
        head = data[position]
        position += 1
        if head == _ONE_TOKEN and not agent and position + _TOKEN_BYTES <= end:
            (number,) = _HEAD_AND_TOKEN.unpack_from(data, position - 1)
            position += _TOKEN_BYTES
            yield Sampled([number >> 8]), None
            continue
        if head == _AGENT:
            agent = int.from_bytes(data[position : position + _AGENT_BYTES], "little")
            position += _AGENT_BYTES
            if position >= end:
                raise BrokenLog("the last record is cut")
            continue
        if head & _SHORT:
            begin, size = position, (head & _MAX_SHORT) * _TOKEN_BYTES
        elif head == _RECORDED:
            begin, size = position, 1 + (data[position] if position < end else 0) * (_TOKEN_BYTES + _LOGPROB_BYTES)
        elif head == _LONG:
            # The size counts the four bytes of the length; the content begins behind them.
            begin, size = position + 4, 4 + int.from_bytes(data[position : position + 4], "little")
        else:
            raise BrokenLog(f"a record begins with {head}")
        position += size
        if position > end:
            raise BrokenLog("the last record is cut")
        content = data[begin:position]
        if head == _LONG:
            input, at = _decode_long(content), _time_behind(content)
        else:
            input, at = Sampled(_tokens(content)) if head & _SHORT else _decode_recorded(content), None
        yield OfAgent(agent, input) if agent else input, at
        agent = 0


def encode_one(input: Input, at: int | None = None) -> bytes:
    """Write one input; with `at` (Unix milliseconds) also when it came."""
    if at is None and isinstance(input, Sampled) and _is_plain(input):
        tokens = input.token_ids
        if input.recorded is None and len(tokens) == 1:  # nearly always
            return _HEAD_AND_TOKEN.pack(_ONE_TOKEN | tokens[0] << 8)
        packed = b"".join([token.to_bytes(_TOKEN_BYTES, "little") for token in tokens])
        if input.recorded is None:
            return bytes((_SHORT | len(tokens),)) + packed
        packed_logprobs = _packed_logprobs(input.recorded, len(tokens))
        if packed_logprobs is not None:
            return bytes((_RECORDED, len(tokens))) + packed + packed_logprobs
    if isinstance(input, OfAgent):
        return bytes((_AGENT,)) + input.agent.to_bytes(_AGENT_BYTES, "little") + encode_one(input.input, at)
    kind, write = _WRITERS[type(input)]
    content = orjson.dumps([kind, *write(input)])
    if at is not None:
        # The highest two bits first. Six bytes are 24 digits, of which the last ones count.
        content += b"".join([_FOUR_DIGITS[byte] for byte in at.to_bytes(6, "big")])[-_TIME_DIGITS:]
    return bytes((_LONG,)) + len(content).to_bytes(4, "little") + content


def _is_plain(chunk: Sampled) -> bool:
    """Whether it has nothing but tokens, and perhaps what is recorded."""
    if chunk.finish is not None or chunk.cached_tokens is not None or chunk.logprobs is not None:
        return False
    if chunk.prompt_tokens is not None or chunk.weights_version is not None or chunk.weights is not None:
        return False
    # An empty chunk is written as JSON: a head needs tokens.
    return 0 < len(chunk.token_ids) <= _MAX_SHORT and max(chunk.token_ids) < _MAX_TOKEN


def _packed_logprobs(recorded: Sequence[TokenLogprob], tokens: int) -> bytes | None:
    """Return the recorded values of so many tokens as 32-bit floats; None where these are not all of it, to the bit."""
    if len(recorded) != tokens or any(each.top for each in recorded):
        return None
    if len(recorded) == 1:  # nearly always
        value = recorded[0].logprob
        try:
            packed = _ONE.pack(value)
        except OverflowError:
            return None
        return packed if _ONE.unpack(packed)[0] == value else None
    values = [each.logprob for each in recorded]
    try:
        packed = struct.pack(f"<{len(values)}f", *values)
    except OverflowError:  # larger than such a float can be
        return None
    return packed if list(struct.unpack(f"<{len(values)}f", packed)) == values else None


def _decode_recorded(content: bytes) -> Sampled:
    count = content[0]
    tokens = _tokens(content[1 : 1 + count * _TOKEN_BYTES])
    values = struct.unpack(f"<{count}f", content[1 + count * _TOKEN_BYTES :])
    return Sampled(tokens, recorded=[TokenLogprob(*pair) for pair in zip(tokens, values, strict=True)])


def _tokens(data: bytes) -> list[int]:
    return [int.from_bytes(data[start : start + _TOKEN_BYTES], "little") for start in range(0, len(data), _TOKEN_BYTES)]


def _decode_long(content: bytes) -> Input:
    try:
        kind, *fields = orjson.loads(content)
        return _READERS[kind](*fields)
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenLog("a record cannot be read") from error


def _time_behind(content: bytes) -> int | None:
    """Return the time that stands behind a record's JSON, if there is one."""
    # JSON that orjson writes ends with `]`, so white space at the end is a time or nothing.
    digits = content[-_TIME_DIGITS:].translate(_FROM_DIGITS)
    return int(digits, 4) if len(digits) == _TIME_DIGITS and not digits.strip(b"0123") else None


def _write_sampled(chunk: Sampled) -> tuple[object, ...]:
    further: tuple[object, ...] = () if chunk.prompt_tokens is None else (chunk.prompt_tokens,)
    if chunk.recorded is not None or chunk.weights_version is not None or chunk.weights is not None:
        further = (chunk.prompt_tokens, _write_logprobs(chunk.recorded), chunk.weights_version)
        if chunk.weights is not None:
            further = (*further, [list(span) for span in chunk.weights])
    return (
        list(chunk.token_ids),
        chunk.finish.value if chunk.finish else None,
        chunk.cached_tokens,
        _write_logprobs(chunk.logprobs),
        *further,
    )


def _write_logprobs(logprobs: Sequence[TokenLogprob] | None) -> list[object] | None:
    return None if logprobs is None else [[each.token_id, each.logprob, each.top] for each in logprobs]


def _read_sampled(  # noqa: PLR0913 - the fields of a record
    tokens: list[int],
    finish: str | None,
    cached: int | None,
    logprobs: list[Any] | None,
    prompt: int | None = None,
    recorded: list[Any] | None = None,
    weights_version: str | None = None,
    weights: list[Any] | None = None,
) -> Sampled:
    return Sampled(
        tokens,
        FinishReason(finish) if finish else None,
        cached,
        _read_logprobs(logprobs),
        prompt,
        _read_logprobs(recorded),
        weights_version,
        None if weights is None else [WeightsSpan(*span) for span in weights],
    )


def _read_logprobs(written: list[Any] | None) -> list[TokenLogprob] | None:
    if written is None:
        return None
    return [
        TokenLogprob(token, _logprob(own), tuple((each, _logprob(its)) for each, its in top))
        for token, own, top in written
    ]


def _logprob(written: float | None) -> float:
    """Read a log probability: JSON has no minus infinity, so that was written as null."""
    return -math.inf if written is None else written


def _write_output(input: OutputGiven) -> tuple[object, ...]:
    """Write what the model reads of it only where that is something else than what was sent."""
    if input.seen:
        return (input.call_id, input.output, input.text, _write_seen(input.seen))
    same = input.text == input.output
    return (input.call_id, input.output) if same else (input.call_id, input.output, input.text)


def _read_output(
    call_id: str, output: str | list[JsonObject], text: str | None = None, seen: Sequence[Any] = ()
) -> OutputGiven:
    return OutputGiven(call_id, output, str(output) if text is None else text, _read_seen(seen))


def _write_seen(seen: Sequence[str | PicturePart]) -> list[object]:
    return [{"image": part.digest} if isinstance(part, PicturePart) else part for part in seen]


def _read_seen(written: Sequence[Any]) -> Sequence[str | PicturePart]:
    return tuple(part if isinstance(part, str) else PicturePart(part["image"]) for part in written)


def _write_offered(input: Offered) -> tuple[object, ...]:
    approved = [[each.request_id, each.server, each.tool, each.arguments] for each in input.approved]
    programs = [[each.call_id, each.code, [astuple(call) for call in each.made]] for each in input.programs]
    further = (programs,) if programs else ()
    return [tool.as_json() for tool in input.tools], list(input.servers), approved, dict(input.states), *further


def _read_offered(
    tools: list[Any],
    servers: list[str],
    approved: list[Any],
    states: dict[str, Any],
    programs: Sequence[tuple[str, str, list[Any]]] = (),
) -> Offered:
    calls = [
        ApprovedCall(request_id=request_id, server=server, tool=tool, arguments=arguments)
        for request_id, server, tool, arguments in approved
    ]
    paused = tuple(
        PausedProgram(call_id, code, tuple(MadeCall(*call) for call in made)) for call_id, code, made in programs
    )
    return Offered(_offered_tools(tools), servers, calls, states, paused)


def _offered_tools(written: list[Any]) -> list[OfferedTool]:
    return [OfferedTool(**each) for each in written]


def _write_asked(input: OutputOptions) -> tuple[object, ...]:
    # Fields that an earlier version did not have come last, and only where they say something: that version can read
    # the rest.
    more = input.stops or input.stop_tokens or input.objects
    further = (list(input.stops), list(input.stop_tokens), *([True] if input.objects else [])) if more else ()
    return (input.sealed, input.summaries.value if input.summaries else None, *further)


def _read_asked(
    sealed: bool,
    summaries: str | None,
    stops: Sequence[str] = (),
    stop_tokens: Sequence[int] = (),
    objects: bool = False,
) -> OutputOptions:
    return OutputOptions(sealed, Summaries(summaries) if summaries else None, tuple(stops), tuple(stop_tokens), objects)


def _write_returned(input: ToolReturned) -> tuple[object, ...]:
    further: tuple[object, ...] = (input.shown, input.state) if input.shown or input.state is not None else ()
    if input.seen:
        further = (input.shown, input.state, _write_seen(input.seen))
    return (input.text, input.failed, *further)


def _read_returned(
    text: str, failed: bool, shown: JsonObject | None = None, state: JsonObject | None = None, seen: Sequence[Any] = ()
) -> ToolReturned:
    return ToolReturned(text, failed, shown or {}, state, _read_seen(seen))


_Writer = tuple[str, Callable[[Any], tuple[object, ...]]]
# The names are in logs for good. One may be added, and none renamed.
_WRITERS: Mapping[type[Any], _Writer] = {
    Enqueued: ("enqueued", lambda _: ()),
    Declared: ("declared", lambda input: (list(input.tools),)),
    OutputOptions: ("asked", _write_asked),
    AgentsAllowed: ("agents", lambda input: (asdict(input.limits), input.calls_client)),
    RunStarted: ("started", lambda input: (input.mode.value, input.budget, *((True,) if input.waits else ()))),
    TurnBegan: ("turn", lambda input: (input.prompt_tokens,)),
    Sampled: ("sampled", _write_sampled),
    Prefilled: ("prefilled", lambda _: ()),
    Sealed: ("sealed", lambda input: (input.text, input.budget)),
    Offered: ("offered", _write_offered),
    ToolsListed: (
        "listed",
        lambda input: (input.server, list(input.tools), [tool.as_json() for tool in input.offered], input.error),
    ),
    ToolsFound: ("found", lambda input: (list(input.tools), [tool.as_json() for tool in input.offered])),
    ProgramCalled: ("program_called", lambda input: (input.tool.as_json(), input.arguments)),
    ProgramPaused: ("program_paused", lambda input: ([list(call) for call in input.calls],)),
    ProgramEnded: ("program_ended", lambda input: (input.text, input.failed)),
    ToolProgressed: ("progress", lambda input: (input.fields,)),
    ToolReturned: ("tool", _write_returned),
    WaitBegan: ("wait", lambda input: (input.until,)),
    OutputGiven: ("output", _write_output),
    TimedOut: ("timed_out", lambda input: (input.seconds,)),
    Failed: ("failed", lambda input: (input.error,)),
    Stopped: ("stopped", lambda input: (input.reason.value,)),
    Ended: ("ended", lambda input: (input.at, input.error)),
}
# A record may lack the last fields (an older version wrote it): then they have the defaults.
_READERS: Mapping[str, Callable[..., Input]] = {
    "enqueued": Enqueued,
    "declared": Declared,
    "asked": _read_asked,
    "agents": lambda limits, calls_client: AgentsAllowed(AgentLimits(**limits), calls_client),
    "started": lambda mode, budget, waits=False: RunStarted(Mode(mode), budget, waits),
    "turn": TurnBegan,
    "sampled": _read_sampled,
    "prefilled": Prefilled,
    "sealed": Sealed,
    "offered": _read_offered,
    "listed": lambda server, tools, offered, error: ToolsListed(server, tools, _offered_tools(offered), error),
    "found": lambda tools, offered: ToolsFound(tools, _offered_tools(offered)),
    "program_called": lambda tool, arguments: ProgramCalled(OfferedTool(**tool), arguments),
    "program_paused": lambda calls: ProgramPaused([FunctionCalled(*call) for call in calls]),
    "program_ended": ProgramEnded,
    "progress": ToolProgressed,
    "tool": _read_returned,
    "wait": WaitBegan,
    "output": _read_output,
    "timed_out": TimedOut,
    "failed": Failed,
    "stopped": lambda reason: Stopped(StopReason(reason)),
    "ended": Ended,
}
