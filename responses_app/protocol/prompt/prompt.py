"""A chain → the prompt of one generation.

What cannot fit a model's context however it is cut into tokens is refused before anybody tokenises it: that takes up to
2 µs a character, which is a minute for the largest body. No token has more bytes than the longest one of the
vocabulary, so a text has at least as many tokens as it has characters, divided by that.
"""

from dataclasses import dataclass
from typing import NamedTuple, assert_never

from engine.formats.base import ModelFormat, Tokens, ToolNamespace, without_pictures
from responses_app.protocol.errors import JsonObject, context_length_exceeded
from responses_app.protocol.items.items import (
    Compaction,
    CompactionTrigger,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    ItemReference,
    Message,
    OpenedCompaction,
    PassedThrough,
    Reasoning,
    TextPart,
)
from responses_app.protocol.items.tool_items import LateFunctions, ReadCall, ReadOutput, ToolItem, read_tool_item
from responses_app.protocol.prompt.chain import ChainLink, drop_oldest
from responses_app.protocol.prompt.rendering import Items, places_replaced
from responses_app.protocol.requests.requests import CreateRequest

MAX_CUTS = 4  # tries to shorten a prompt whose length is known only once it is rendered


class Prompt(NamedTuple):
    """The tokens of a prompt, and what the format made them of."""

    tokens: "Tokens[int]"  # as the engine is given them
    draft: "Tokens[int]"  # see `ModelFormat.prompt_of`: frame, chain and what asks the model to go on


@dataclass(frozen=True, slots=True)
class PromptWriter:
    """Writes the prompts of one model in its format; prompt and answer together fit into `max_model_len` tokens."""

    format: ModelFormat
    max_model_len: int  # of prompt and answer together, in tokens
    namespaces: tuple[ToolNamespace, ...] = ()  # tools of this server that the model is told of

    def prompt(self, request: CreateRequest, link: ChainLink) -> Prompt:
        """Return the prompt that continues `link`, whose last messages are the request's own.

        Instructions, tools and effort are the request's, never an earlier one's. Raises `ApiError`
        (`context_length_exceeded`) where it does not fit, unless the request asks to truncate.
        """
        frame, chain = self._frame(request, link.started_on), link.prompt_tokens()
        prompt = self._written(frame, chain)
        # One token at least is left for the answer.
        if len(prompt.tokens) < self.max_model_len:
            return prompt
        if request.truncation != "auto":
            raise context_length_exceeded(len(prompt.tokens), self.max_model_len)
        # A quarter of the context is left for the answer where the request does not say, and never more than half.
        reserve = min(request.max_output_tokens or self.max_model_len // 4, self.max_model_len // 2)
        return self._truncated(frame, link, prompt, self.max_model_len - reserve)

    def _truncated(self, frame: "Tokens[int]", link: ChainLink, prompt: Prompt, size: int) -> Prompt:
        """Return a prompt of `size` tokens without the chain's oldest messages; a draft only estimates how many."""
        fixed = len(frame) + len(self.format.generation_start())
        for _ in range(MAX_CUTS):
            # Drafts are cut, and tokens count: the limit is scaled by how many tokens this draft gave.
            limit = size * len(prompt.draft) // len(prompt.tokens) - fixed
            shorter = self._written(frame, drop_oldest(link, limit))
            if len(shorter.tokens) < self.max_model_len:
                return shorter
            if len(shorter.draft) == len(prompt.draft):
                break  # nothing is left to be dropped
            prompt = shorter
        raise context_length_exceeded(len(shorter.tokens), self.max_model_len, truncated=True)

    def frame_tokens(self, request: CreateRequest, started_on: str) -> int:
        """Return how many tokens of a request's prompt are not its chain's."""
        return len(self._frame(request, started_on)) + len(self.format.generation_start())

    def summary_prompt(self, request: CreateRequest, link: ChainLink, *, room: int) -> Prompt:
        """Return the prompt that asks for a summary of `link`, whose last message says so.

        `room` tokens are left for it; the oldest messages are left out where there is no room for them. Raises
        `ApiError` where none of them would remain.
        """
        # Thinking costs tokens that the summary needs. No tools: nothing is to be called.
        effort = "none" if request.effort == "none" else "low"
        frame = self.format.frame(instructions=request.instructions, functions=(), effort=effort, date=link.started_on)
        whole = chain = link.prompt_tokens()
        fixed = len(frame) + len(self.format.generation_start())
        prompt = self._written(frame, chain)
        if len(prompt.tokens) <= self.max_model_len - room:
            return prompt
        space = (self.max_model_len - room) * len(prompt.draft) // len(prompt.tokens) - fixed
        chain = drop_oldest(link, space)
        # Nothing but the message that asks for the summary remains.
        if len(chain) > space or len(chain) == link.own.lengths[-1]:
            raise context_length_exceeded(fixed + len(whole), self.max_model_len)
        return self._written(frame, chain)

    def _written(self, frame: "Tokens[int]", chain: "Tokens[int]") -> Prompt:
        draft = frame[:]
        draft.extend(chain)
        draft.extend(self.format.generation_start())
        return Prompt(self.format.prompt_of(draft), draft)

    def _frame(self, request: CreateRequest, started_on: str) -> "Tokens[int]":
        """Render what stands before the chain: the request's instructions and, unless it forbids calls, functions."""
        return self.format.frame(
            instructions=request.instructions,
            functions=request.offered_functions,
            effort=request.effort,
            date=started_on,
            namespaces=self.namespaces,
        )


def check_can_fit(characters: int, model_format: ModelFormat, max_model_len: int, *, truncated: bool = False) -> None:
    """Refuse a prompt of so many characters that cannot fit. Raises `ApiError` (`context_length_exceeded`)."""
    longest = model_format.longest_token if characters >= max_model_len else None  # what is short is not looked up
    if longest is not None and characters // longest >= max_model_len:
        raise context_length_exceeded(characters // longest, max_model_len, truncated=truncated, at_least=True)


def check_request_can_fit(
    request: CreateRequest, before: Items, own: Items, model_format: ModelFormat, max_model_len: int
) -> None:
    """Refuse a request whose instructions and items cannot fit. Raises `ApiError` (`context_length_exceeded`).

    Where older messages may be left out (`truncation`), the instructions and the last item count.
    """
    truncated = request.truncation == "auto"
    size = len(request.instructions or "") + sum(len(each.description) for each in request.offered_functions)
    if truncated:
        size += characters_of(Items(own.parsed[-1:], own.raw[-1:]))
    else:
        size += characters_of(Items([*before.parsed, *own.parsed], [*before.raw, *own.raw]))
    check_can_fit(size, model_format, max_model_len, truncated=truncated)


def text_size(items: Items) -> int:
    """Return how many characters the messages among items have; quick, as it is asked on the event loop."""
    contents = (
        item.content if isinstance(item, Message) else item.output
        for item in items.parsed
        if isinstance(item, Message | FunctionCallOutput)
    )
    return sum(len(part.text) for parts in contents for part in parts if isinstance(part, TextPart))


def characters_of(items: Items) -> int:
    """Return how many characters of a prompt these items are at least: without reasoning, which may be left out."""
    replaced = places_replaced(items.parsed)
    each = enumerate(zip(items.parsed, items.raw, strict=True))
    return sum(_characters(item, raw) for place, (item, raw) in each if place not in replaced)


def _characters(item: InputItem, raw: JsonObject) -> int:
    match item:
        case Message() | FunctionCallOutput():
            return text_size(Items([item]))
        case FunctionCall():
            return len(item.arguments)
        case PassedThrough():
            return sum(map(_characters_read, read_tool_item(raw, lambda _: None)))
        case Reasoning() | ItemReference() | Compaction() | CompactionTrigger() | OpenedCompaction():
            return 0
    assert_never(item)


def _characters_read(read: ToolItem) -> int:
    match read:
        case ReadCall():
            return len(read.arguments)
        case ReadOutput():
            return len(without_pictures(read.body))
        case LateFunctions():
            return 0
    return len(read.text)
