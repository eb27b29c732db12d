"""Items → Harmony messages, and a chain → the prompt of one generation.

An item that this server sampled and that a client replays unchanged comes back as the tokens it was sampled as: see
`SampledItem`. Everything else is rendered, in the order of the input.
"""

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from engine.harmony.header import ANALYSIS, COMMENTARY, FINAL
from engine.harmony.prompt import (
    RenderedMessage,
    Tokens,
    as_tokens,
    generation_start,
    render_assistant,
    render_call,
    render_developer,
    render_system,
    render_text,
    render_tool_output,
)
from responses_app.protocol.chain import ChainLink, drop_oldest
from responses_app.protocol.compaction import UNREADABLE, digest, summary_message
from responses_app.protocol.errors import ApiError, JsonObject, context_length_exceeded, invalid_request
from responses_app.protocol.items import (
    Compaction,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    MediaPart,
    Message,
    OpenedCompaction,
    Part,
    Reasoning,
    RefusalPart,
    SampledItem,
)
from responses_app.protocol.requests import CreateRequest
from responses_app.protocol.stream import FUNCTIONS

_OMITTED = {
    "input_image": "[image omitted: this model cannot see images]",
    "computer_screenshot": "[image omitted: this model cannot see images]",
    "input_file": "[file omitted: this model cannot read files]",
    "input_audio": "[sound omitted: this model cannot hear]",
}


def render_items(
    items: Sequence[InputItem],
    input_json: Sequence[JsonObject],
    *,
    parent: ChainLink | None,
    sampled: Mapping[str, SampledItem],
    own: int | None = None,
) -> list[RenderedMessage]:
    """Render items; the last `own` of them are the request's (all, by default), those before its conversation's.

    `sampled` holds what this server knows of the items' ids. Raises `ApiError` for the output of a call that stands
    neither in the items before it nor in the chain of `parent`; in a conversation, which keeps what it is given, the
    model reads such an output without its function's name. What a compaction replaces is left out.
    """
    first = 0 if own is None else own - len(items)
    replaced = _replaced(items)
    calls: dict[str, str] = {}
    messages: list[RenderedMessage] = []
    for index, (item, raw) in enumerate(zip(items, input_json, strict=True), first):
        if isinstance(item, FunctionCall):
            calls[item.call_id] = item.name
        if index - first in replaced:
            continue
        known = sampled.get(item.id) if item.id else None
        if known is not None and known.is_replayed_by(raw):
            messages.append(known.message)
            continue
        if isinstance(item, FunctionCallOutput):
            name = calls.get(item.call_id) or (parent.call_name(item.call_id) if parent else None)
            if name is None and index >= 0:
                raise _unknown_call(index, item.call_id)
            messages.append(render_tool_output(FUNCTIONS + (name or "unknown"), text_of(item.output)))
        else:
            messages += _render_item(item)
    return messages


def _replaced(items: Sequence[InputItem]) -> set[int]:
    """Return the places of the items that a compaction behind them stands for."""
    places: set[int] = set()
    whole, said = False, frozenset[str]()  # what the compactions behind stand for: all, or these messages of the user
    for place in reversed(range(len(items))):
        item = items[place]
        if whole or (said and is_of_user(item) and digest(text_of(item.content)) in said):
            places.add(place)
        elif isinstance(item, OpenedCompaction):
            whole = item.compacted.replaces_all
            said |= item.compacted.stands_for
    return places


def is_of_user(item: InputItem) -> TypeGuard[Message]:
    """Whether this is a message of the user."""
    return isinstance(item, Message) and item.role == "user"


def _render_item(item: InputItem) -> list[RenderedMessage]:
    match item:
        case Message(role="assistant"):
            channel = COMMENTARY if item.phase == "commentary" else FINAL
            return [render_assistant(channel, text_of(item.content))]
        case Message():
            return [render_text(item.role, text_of(item.content))]
        case Reasoning() if item.content:
            return [render_assistant(ANALYSIS, text_of(item.content))]
        case FunctionCall():
            return [render_call(FUNCTIONS + item.name, item.arguments)]
        case OpenedCompaction():
            return item.compacted.messages()
        case Compaction():
            return [summary_message(UNREADABLE)]
    return []  # kept, not read: see items.PASSED_THROUGH


def omitted_media(items: Sequence[InputItem]) -> int:
    """Count the parts that the model cannot read and that a note replaces in the prompt."""
    parts = [p for item in items if isinstance(item, Message) for p in item.content]
    parts += [p for item in items if isinstance(item, FunctionCallOutput) for p in item.output]
    return sum(isinstance(part, MediaPart) for part in parts)


def text_of(parts: Sequence[Part]) -> str:
    """Join content parts as the model reads them: line by line, a note in place of what it cannot see."""
    return "\n".join(map(_text_of_part, parts))


def _text_of_part(part: Part) -> str:
    match part:
        case RefusalPart():
            return part.refusal
        case MediaPart():
            return _OMITTED[part.type]
    return part.text


def build_prompt(request: CreateRequest, link: ChainLink, *, max_model_len: int) -> "Tokens[int]":
    """Return the prompt that continues `link`, whose last messages are the request's own.

    Instructions, tools and effort are the request's, never an earlier one's. Raises `ApiError`
    (`context_length_exceeded`) where it does not fit, unless the request asks to truncate.
    """
    has_functions = bool(request.offered_functions)
    prompt = as_tokens(render_system(effort=request.effort, date=link.started_on, has_functions=has_functions))
    prompt.extend(_developer(request))
    start = generation_start()
    chain = link.prompt_tokens()
    fixed = len(prompt) + len(start)
    if fixed + len(chain) >= max_model_len:
        if request.truncation != "auto":
            raise context_length_exceeded(fixed + len(chain), max_model_len)
        reserve = min(request.max_output_tokens or max_model_len // 4, max_model_len // 2)
        chain = drop_oldest(link, max_model_len - fixed - reserve)
        if fixed + len(chain) >= max_model_len:
            raise context_length_exceeded(fixed + len(chain), max_model_len, truncated=True)
    prompt.extend(chain)
    prompt.extend(start)
    return prompt


def frame_tokens(request: CreateRequest, started_on: str) -> int:
    """Return how many tokens of a request's prompt are not its chain's."""
    has_functions = bool(request.offered_functions)
    system = render_system(effort=request.effort, date=started_on, has_functions=has_functions)
    return len(system) + len(_developer(request)) + len(generation_start())


def build_summary_prompt(request: CreateRequest, link: ChainLink, *, max_model_len: int, room: int) -> "Tokens[int]":
    """Return the prompt that asks for a summary of `link`, whose last message says so; `room` tokens are left for it.

    The oldest messages are left out where there is no room for them. Raises `ApiError` where none of them would remain.
    """
    prompt = as_tokens(render_system(effort="low", date=link.started_on, has_functions=False))
    prompt.extend(render_developer(instructions=request.instructions, tools=()))
    start = generation_start()
    whole = chain = link.prompt_tokens()
    space = max_model_len - room - len(prompt) - len(start)
    if len(chain) > space:
        chain = drop_oldest(link, space)
        if len(chain) > space or len(chain) == link.own.lengths[-1]:
            raise context_length_exceeded(len(prompt) + len(whole) + len(start), max_model_len)
    prompt.extend(chain)
    prompt.extend(start)
    return prompt


def _developer(request: CreateRequest) -> Sequence[int]:
    """Render the developer message of a request: its instructions and, unless it forbids calls, its functions."""
    return render_developer(instructions=request.instructions, tools=tuple(request.offered_functions))


def _unknown_call(index: int, call_id: str) -> ApiError:
    param = f"input[{index}].call_id"
    message = (
        f"No tool call found for function call output with call_id '{call_id}' ('{param}'). Send the function_call "
        "item before its output, or continue the response that made the call with 'previous_response_id'."
    )
    return invalid_request(message, param=param)
