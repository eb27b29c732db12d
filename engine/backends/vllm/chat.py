"""Work in this process with a model's own tokenizer: prompts of conversations and texts, and vLLM's parsers.

`vllm_parsers` has vLLM's own reasoning and tool parsers read turns, of families whose calls our reader does not know.
They are asked token by token, so that the same tokens give the same items however they came. Where a parser of vLLM's
fails, what follows is text of the answer: nothing that a model says is an error of the server.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from engine import orjson
from engine.errors import EngineConfigurationError, EngineUnavailable, NotRendered
from engine.formats.base import Text
from engine.formats.chat_template.reader import (
    FREEFORM_ARGUMENTS,
    LINE,
    BaseReader,
    Gap,
    Read,
    ReadEnded,
    ReadKind,
    ReadStarted,
    freeform_text,
)
from engine.types import ChatPrompt

logger = logging.getLogger("respsite.engine")


def load_template(tokenizer: str, options: Mapping[str, object]) -> Any:
    """Return the tokenizer of a folder, or of the hub, as vLLM makes it. Raises `EngineUnavailable`."""
    from vllm.tokenizers import get_tokenizer

    try:
        return get_tokenizer(tokenizer, trust_remote_code=bool(options.get("trust_remote_code")))
    except Exception as error:
        raise EngineUnavailable(
            f"The tokenizer {tokenizer} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


class Template(NamedTuple):
    """A template that renders conversations, beside a tokenizer."""

    text: str | None = None  # None: the tokenizer's own
    in_parts: bool = False  # it reads contents as lists of parts alone


TOKENIZERS_OWN = Template()


def template_of(llm: Any) -> Template:
    """Return the template of a model that sees: many have it beside what reads pictures, and some with parts alone."""
    from vllm.renderers.hf import resolve_chat_template, resolve_chat_template_content_format

    tokenizer, config = llm.renderer.get_tokenizer(), llm.vllm_config.model_config
    text = resolve_chat_template(tokenizer, None, None, model_config=config)
    way = resolve_chat_template_content_format(text, None, "auto", tokenizer, model_config=config)
    return Template(text, way == "openai")


def rendered_chat(tokenizer: Any, chat: ChatPrompt, template: Template = TOKENIZERS_OWN) -> Sequence[int]:
    """Return the prompt of a conversation. Raises `NotRendered` where the template refuses it."""
    try:
        prompt = tokenizer.apply_chat_template(
            [_with_objects(message, in_parts=template.in_parts) for message in chat.messages],
            tools=chat.tools or None,
            chat_template=template.text,
            add_generation_prompt=True,  # the template ends with the beginning of the assistant's turn
            tokenize=True,
            return_dict=False,  # a list of token ids, not a dictionary with an attention mask
            **chat.template_kwargs,
        )
    except Exception as error:  # a template may raise anything
        raise NotRendered(f"{type(error).__name__}: {error}") from error
    return [int(token) for token in prompt]


def tokenized(tokenizer: Any, text: str) -> Sequence[int]:
    """Return a text as a whole prompt, with the tokens that its model begins every prompt with.

    Raises `NotRendered` for a text that cannot be tokenized.
    """
    try:
        return [int(token) for token in tokenizer.encode(text)]
    except Exception as error:  # as above: it may be of any library
        raise NotRendered(f"{type(error).__name__}: {error}") from error


def _with_objects(message: Mapping[str, Any], *, in_parts: bool) -> dict[str, Any]:
    """Return a message whose calls have their arguments as objects: templates want them so, as vLLM does it, too."""
    if in_parts and isinstance(message.get("content"), str):
        message = {**message, "content": [{"type": "text", "text": message["content"]}]}
    if "tool_calls" not in message:
        return dict(message)
    calls = [
        {**call, "function": {**call["function"], "arguments": orjson.loads_kept(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def vllm_parsers(tokenizer: str, reasoning: str, tool: str) -> Callable[[Collection[str]], "VllmTurnReader"]:
    """Return what makes readers of turns with vLLM's parsers of these names, given what functions can be called.

    `tokenizer` is a folder, or a name of the hub. Raises `EngineConfigurationError` where vLLM has no such parsers.
    """
    try:
        from vllm.parser import ParserManager

        loaded = load_template(tokenizer, {})
        make = ParserManager.get_parser(
            tool_parser_name=tool or None, reasoning_parser_name=reasoning or None, enable_auto_tools=bool(tool)
        )
    except Exception as error:
        raise EngineConfigurationError(
            f"vLLM's parsers {', '.join(filter(None, (reasoning, tool)))} cannot be used here: {error}. They need "
            "vLLM in this process."
        ) from error
    assert make is not None, "a parser was named"

    # vLLM's parsers read the tools from a request, so one is made up that declares nothing but their names.
    def reader(functions: Collection[str]) -> "VllmTurnReader":
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        request = ChatCompletionRequest.model_validate(
            {
                "messages": [{"role": "user", "content": ""}],
                "tools": [{"type": "function", "function": {"name": name}} for name in functions] or None,
            }
        )
        return VllmTurnReader(make(loaded, request.tools), request)

    return reader


class VllmTurnReader(BaseReader):
    """Reads one turn with a parser of vLLM's."""

    takes_special_tokens = True

    def __init__(self, parser: Any, request: Any) -> None:
        self._parser: Any = parser  # None once it has failed
        self._request = request
        self._open: ReadKind | None = None  # what the item is that is being told now; None before the first one
        # The number of the open call, as vLLM counts them in a turn; -1 before the first one.
        self._call = -1
        self._held = ""  # arguments that may be those of a tool that takes text as it is
        self._latest: ReadKind | None = None  # what was told last, if only white space of it
        self._gap = Gap()  # before the item that comes next
        self._line = ""  # the line end that a text ends with so far: it is the template's if another item follows
        self.repairs = 0  # how often the parser failed: 1 at most, as it is dropped then

    def feed(self, text: str, tokens: Sequence[int] = ()) -> list[Read]:
        return self._parsed(text, tokens, finished=False)

    def end(self, *, stopped: bool) -> list[Read]:
        read = self._parsed("", (), finished=True)
        if self._open is not None:
            if self._line:
                read.append(Text(self._line))
            self._end(read, ReadEnded(truncated=not stopped, is_last=self._open is ReadKind.CALL and stopped))
            self._open = None
        return read

    def _end(self, read: list[Read], ended: ReadEnded) -> None:
        """End the open item; the arguments of a tool that takes text are that text."""
        held, self._held = self._held, ""
        text = freeform_text(held)
        if text or held:
            read.append(Text(text or held))
        read.append(replace(ended, freeform=text is not None))

    def _parsed(self, text: str, tokens: Sequence[int], *, finished: bool) -> list[Read]:
        read: list[Read] = []
        delta = None
        # The parser's state may be half changed when it raises, so it is never asked again in this turn.
        if self._parser is not None:
            try:
                delta = self._parser.parse_delta(text, list(tokens), self._request, [], finished=finished)
            except Exception:  # a parser may raise anything, for what a model may say
                logger.exception("a parser of vLLM's failed; what follows is read as text")
                self._parser, self.repairs = None, self.repairs + 1
        if self._parser is None:
            self._say(ReadKind.ANSWER, text, read)
        elif delta is not None:
            self._say(ReadKind.REASONING, delta.reasoning or "", read)
            self._say(ReadKind.ANSWER, delta.content or "", read)
            for call in delta.tool_calls or ():
                self._call_on(call, read)
        return read

    def _say(self, kind: ReadKind, text: str, read: list[Read]) -> None:
        # White space alone opens no item (`Gap.take`), and yet it must be known what it came behind.
        if text and self._latest is not kind:
            behind = self._latest
            self._gap = Gap(is_behind_thought=behind is ReadKind.REASONING, is_behind_call=behind is ReadKind.CALL)
            self._latest = kind
        # The gap swallows what the template writes between two items: only the rest begins an item.
        if self._open is not kind:
            text = self._gap.take(text)
            if not text:
                return
            before = self._gap.before_thought() if kind is ReadKind.REASONING else self._gap.before_answer()
            self._begin(ReadStarted(kind), read)
            text = before + text
        # A line end is held back until more text follows: only then is it the model's own.
        text = self._line + text
        self._line = LINE if text.endswith(LINE) else ""
        text = text.removesuffix(LINE)
        if text:
            read.append(Text(text))

    def _call_on(self, call: Any, read: list[Read]) -> None:
        function = call.function
        # The first delta of a call has its name; one without a name that belongs to no open call is dropped.
        if self._open is not ReadKind.CALL or call.index != self._call:
            if function is None or not function.name:
                return
            self._begin(ReadStarted(ReadKind.CALL, function.name), read)
            self._call = call.index
        if function is not None and function.arguments:
            self._held += function.arguments
            # While they may be those of a tool that takes text (`FREEFORM`), nothing is said of them.
            if FREEFORM_ARGUMENTS.match(self._held, partial=True) is None:
                read.append(Text(self._held))
                self._held = ""

    def _begin(self, started: ReadStarted, read: list[Read]) -> None:
        if self._open is not None:
            self._end(read, ReadEnded())
        self._open, self._latest, self._line = started.kind, started.kind, ""
        read.append(started)
