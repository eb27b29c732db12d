"""Any model that vLLM serves, written to by its own chat template (`ChatTemplateFormat`) and read by `ChatParser`.

items ──> records (a chain keeps them) ──> a conversation ── vLLM's renderer ──> prompt tokens, spliced
sampled tokens ──> text ──> reasoning, answers, calls ──> records, with their tokens
"""

import codecs
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.errors import NotRendered
from engine.formats.base import (
    Begins,
    Body,
    FunctionTool,
    ItemEnded,
    ItemKind,
    ItemStarted,
    MessageKind,
    ModelFormat,
    RenderedMessage,
    Text,
    Tokens,
    ToolNamespace,
    TurnEvent,
    TurnParser,
    as_tokens,
    without_pictures,
)
from engine.formats.chat_template import prompt as prompts
from engine.formats.chat_template.grammar import problem_of, rest_of, turn_grammar
from engine.formats.chat_template.reader import (
    TAGS,
    THINK,
    THINK_END,
    BaseReader,
    CallStyle,
    Read,
    ReadEnded,
    ReadKind,
    ReadStarted,
    TagReader,
    Whole,
)
from engine.formats.chat_template.vocabulary import Sight, Vocabulary, template_messages
from engine.types import ChatPrompt, TurnGrammar, TurnRules

Render = Callable[[ChatPrompt], Sequence[int]]
Tokenize = Callable[[str], Sequence[int]]
MakeReader = Callable[[Collection[str]], BaseReader]  # given the names of functions that can be called

LABEL = 8  # bytes of the longest text of which `is_one_token` knows
# The template decides about old reasoning, so the chain keeps it: see `MessageKind`.
KINDS = {
    ReadKind.REASONING: MessageKind.COMMENTARY,
    ReadKind.ANSWER: MessageKind.FINAL,
    ReadKind.CALL: MessageKind.COMMENTARY,
}
# The reader's kinds; calls are told apart by their names (`_item`).
_ITEMS = {ReadKind.REASONING: ItemKind.REASONING, ReadKind.ANSWER: ItemKind.ANSWER}


class ChatParser(TurnParser):
    """Reads one generation, token by token: so it reads the same however the tokens come.

    `functions` are those that the client has declared; None where calls are forbidden. `make_reader` makes what reads
    the text, given these names, and what tells whether a name may be a tool's.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        functions: Collection[str] | None,
        make_reader: Callable[[Collection[str], Callable[[str], bool]], BaseReader],
    ) -> None:
        self._vocabulary = vocabulary
        self._functions = functions
        # The reader asks `_is_call` about each name, so it gets the method and not its answer.
        self._reader = make_reader(functions or (), self._is_call)
        # Bytes of half a character are kept until the rest comes.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # The tags themselves may be special tokens, and the reader has to see those.
        seen = vocabulary.special if self._reader.takes_special_tokens else {vocabulary.added.get(tag) for tag in TAGS}
        self._silent = vocabulary.special - seen  # special tokens that are not for the reader
        self._unread: list[int] = []  # tokens whose text is not whole yet
        self._ended = False  # an end token came, or `close`: what follows is not read
        self._started = ReadStarted(ReadKind.ANSWER)  # what the open item began with
        self._texts: list[str] = []  # of the open item
        self._tokens: list[int] = []  # that belong to no item which has ended
        self._whole = 0  # tokens up to the end of the open call; 0 where it has not ended

    @property
    def repairs(self) -> int:  # type: ignore[override]
        """How many items were malformed."""
        return self._reader.repairs

    def feed(self, token_ids: Iterable[int]) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        for token in token_ids:
            if self._ended:
                break
            self._tokens.append(token)
            if token in self._vocabulary.ends:
                events += self._end(stopped=True)
            # Tokens that are silent are still part of the item: `_tokens` has them.
            elif token not in self._silent:
                self._unread.append(token)
                text = self._decoder.decode(self._vocabulary.token_bytes(token))
                if text:
                    events += self._events(self._reader.feed(text, self._unread))
                    self._unread.clear()
        return events

    def close(self) -> list[TurnEvent]:
        return [] if self._ended else self._end(stopped=False)

    def is_end(self, token: int) -> bool:
        return token in self._vocabulary.ends

    def _end(self, *, stopped: bool) -> list[TurnEvent]:
        self._ended = True
        # What is half a character at the end becomes U+FFFD.
        rest = self._decoder.decode(b"", final=True)
        events = self._events(self._reader.feed(rest)) if rest else []
        return events + self._events(self._reader.end(stopped=stopped))

    def _events(self, read: Iterable[Read]) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        for each in read:
            match each:
                case Text():
                    self._texts.append(each.text)
                    events.append(each)
                case ReadStarted():
                    self._started = each
                    self._texts.clear()
                    events.append(self._item())
                case Whole():
                    # The call may yet be followed by white space, or by the turn's end: only then it is known whose
                    # that is.
                    self._whole = len(self._tokens)
                case ReadEnded():
                    events.append(self._item_ended(each))
        return events

    def _item(self) -> ItemStarted:
        """Decide what an item is: a name that the client has not declared is a tool of the server's, if any."""
        kind, name = self._started.kind, self._started.name
        if kind is not ReadKind.CALL:
            return ItemStarted(_ITEMS[kind])
        return ItemStarted(ItemKind.CALL if self._is_own(name) else ItemKind.HOSTED_CALL, name)

    def _is_own(self, name: str) -> bool:
        """Whether the client has declared a function of this name."""
        return self._functions is not None and name in self._functions

    def _item_ended(self, ended: ReadEnded) -> ItemEnded:
        """End an item. What stands between it and the next one is the next one's, and the end of the turn its own."""
        kind = self._started.kind
        # Tokens behind a whole call belong to what follows, unless nothing does.
        size = self._whole if self._whole and not ended.is_last else len(self._tokens)
        tokens, self._tokens, self._whole = self._tokens[:size], self._tokens[size:], 0
        said: dict[str, object] = {"is": kind.value, "text": "".join(self._texts)}
        if kind is ReadKind.CALL:
            said["name"] = self._started.name
            if not self._is_own(self._started.name):
                said["hosted"] = True
        if ended.freeform:
            said["freeform"] = True
        return ItemEnded(
            RenderedMessage(KINDS[kind], prompts.record(said, tokens, vocabulary=self._vocabulary.fingerprint)),
            reasoning_tokens=len(tokens) if kind is ReadKind.REASONING else 0,
            truncated=ended.truncated,
            called=ended.is_last,
        )

    def _is_call(self, name: str) -> bool:
        """Whether a JSON object with this name may be a call: of a declared function, or of a tool of the server's."""
        return self._functions is not None and (bool(self._functions) or "." in name)


@dataclass(frozen=True, slots=True)
class FamilyTraits:
    """How the turns of a family of models are written and read."""

    calls: CallStyle = CallStyle.HERMES  # how it writes calls
    thinks: bool = True  # between think tags
    thinks_first: bool = False  # the template ends a prompt with the first of them
    thinks_under_grammar: bool = True  # what is held to a grammar may begin with a thought, too
    reader: MakeReader | None = None  # what reads its turns in place of ours
    quiet_reader: MakeReader | None = None  # the same, where it is told not to think
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)  # what an operator tells the template
    sight: Sight | None = None  # how its template has a picture; None: it does not see

    @property
    def quiet(self) -> "FamilyTraits":
        """The same where it is told not to think: then no template ends a prompt in a thought."""
        return replace(self, thinks_first=False, thinks_under_grammar=False, reader=self.quiet_reader)


class ChatTemplateFormat(ModelFormat):
    """One model. `vocabulary` is called once, when it is first needed: that reads some MB. `traits` may depend on it.

    `render` has a conversation rendered, and may wait for it: it is called in threads only. So is `tokenize`, which has
    a text tokenized; without it there are no prompts that are text. `takes_pictures` says whether the engine does.
    """

    name = "chat-template"
    renders_elsewhere = True

    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        render: Render,
        traits: Callable[[Vocabulary], FamilyTraits],
        tokenize: Tokenize | None = None,
        takes_pictures: Callable[[], bool] = lambda: False,
    ) -> None:
        self._read_vocabulary = vocabulary
        self._takes_pictures = takes_pictures
        self._render = render
        self._tokenize = tokenize
        self._choose = traits
        # Read at the first use, which may take seconds: the constructor does no I/O.
        self._read: tuple[Vocabulary, list[bytes], FamilyTraits] | None = None
        self._short: frozenset[bytes] | None = None  # of what its tokens say
        # The format for requests that want no thoughts, made at the first of them.
        self._quiet: ChatTemplateFormat | None = None

    def at_effort(self, effort: object) -> "ChatTemplateFormat":
        if effort != prompts.NONE:
            return self
        if self._quiet is None:
            # `self.vocabulary`, so that both share the one that was read.
            self._quiet = ChatTemplateFormat(
                lambda: self.vocabulary,
                self._render,
                lambda _: self._known[2].quiet,
                self._tokenize,
                self._takes_pictures,
            )
        return self._quiet

    @property
    def is_loaded(self) -> bool:  # type: ignore[override]
        """Whether its vocabulary was read."""
        return self._read is not None

    def load(self) -> None:
        assert self._known

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's vocabulary. Raises `EngineConfigurationError` where it cannot be read."""
        return self._known[0]

    @property
    def _known(self) -> tuple[Vocabulary, list[bytes], FamilyTraits]:
        if self._read is None:
            vocabulary = self._read_vocabulary()
            # All three together: `traits` depends on the vocabulary.
            self._read = vocabulary, vocabulary.unmistakable(), self._choose(vocabulary)
        return self._read

    @property
    def sees(self) -> bool:  # type: ignore[override]
        """Whether the model does, and its engine takes pictures."""
        return self._sight is not None

    @property
    def picture_token(self) -> int | None:  # type: ignore[override]
        """The token that stands for a picture in prompts."""
        sight = self._sight
        return None if sight is None else sight.token

    @property
    def _sight(self) -> Sight | None:
        return self._known[2].sight if self._takes_pictures() else None

    @property
    def stop_tokens(self) -> tuple[int, ...]:  # type: ignore[override]
        """The tokens that end a turn."""
        return self.vocabulary.ends

    def parser(self, functions: Collection[str] | None = ()) -> ChatParser:
        return ChatParser(self.vocabulary, functions, self._reader)

    def _reader(self, functions: Collection[str], is_call: Callable[[str], bool]) -> BaseReader:
        traits = self._known[2]
        if traits.reader is not None:
            return traits.reader(functions)
        return TagReader(
            style=traits.calls, thinks=traits.thinks, is_open=traits.thinks and traits.thinks_first, is_call=is_call
        )

    def grammar(self, rules: TurnRules, behind: Sequence[int] = ()) -> TurnGrammar | None:
        traits = self._known[2]
        whole = turn_grammar(rules, traits.calls, thinks=traits.thinks_under_grammar, open=traits.thinks_first)
        if whole is None or not behind:
            return whole
        text = b"".join(map(self.token_bytes, behind)).decode(errors="replace")
        # `open`: then the turn begins within a thought, though no tag of it was sampled.
        return rest_of(whole, text, open=traits.thinks_first)

    def problem_of(self, rules: TurnRules, tokens: Sequence[int]) -> str | None:
        # The names of all tools: the rules say which of them may be called.
        parser = self.parser([rule.name for rule in rules.calls])
        events = parser.feed(tokens)
        return problem_of(rules, events, has_ended=bool(tokens) and parser.is_end(tokens[-1]), repairs=parser.repairs)

    # Prompts.

    def prompt_of(self, draft: "Tokens[int]") -> "Tokens[int]":
        sight = self._sight
        conversation = prompts.conversation_of(
            prompts.records(draft), vocabulary=self.vocabulary.fingerprint, sight=sight
        )
        rendered = self._render(conversation)
        # An engine would take another picture than the one that is meant, without a word.
        if sight is not None and (found := rendered.count(sight.token)) != conversation.pictures:
            raise NotRendered(f"{conversation.pictures} pictures became {found} of the token {sight.name}.")
        return prompts.spliced(rendered, conversation.sampled, self._known[1])

    def pictures_of(self, draft: "Tokens[int]") -> Sequence[str]:
        return prompts.pictures_in(draft) if self.sees else ()

    def picture_places(self, prompt: "Tokens[int]") -> Sequence[int]:
        return [place for place, token in enumerate(prompt) if token == self.picture_token]

    @property
    def vocabulary_name(self) -> str:
        return self.vocabulary.fingerprint

    def messages_in(self, tokens: "Tokens[int]", *, whole: bool) -> Sequence[Begins]:
        return template_messages(tokens, self.vocabulary, whole=whole)

    def wrote(self, first: int) -> bool:
        return first == prompts.MARK

    def frame(
        self,
        *,
        instructions: str | None,
        functions: Sequence[FunctionTool],
        effort: str,
        date: str,
        namespaces: Sequence[ToolNamespace] = (),
    ) -> "Tokens[int]":
        kwargs = self._known[2].template_kwargs
        return prompts.record(prompts.frame_of(instructions, functions, effort, date, namespaces, kwargs=kwargs))

    def generation_start(self) -> Sequence[int]:
        return _START

    def answer_start(self) -> Sequence[int]:
        return ()

    def answer_at_once(self) -> Sequence[int]:
        """Return an empty thought, as templates write it that forbid thinking."""
        vocabulary, _, traits = self._known
        if not (traits.thinks and {THINK, THINK_END} <= vocabulary.added.keys()):
            return ()
        # As the tokens that templates write: a line end behind the tag, and an empty line behind the thought.
        line, begin, end = vocabulary.pieces.index(b"\n"), vocabulary.added[THINK], vocabulary.added[THINK_END]
        # Most vocabularies have two line ends as one token; a template's text is encoded so.
        lines = vocabulary.pieces.index(b"\n\n") if b"\n\n" in vocabulary.pieces else None
        gap = (line, line) if lines is None else (lines,)
        return (*((line,) if traits.thinks_first else (begin, *gap)), end, *gap)

    # Messages.

    def user(self, body: Body) -> RenderedMessage:
        return _message(MessageKind.USER, {"is": "user", **prompts.said_body(self._seen(body))})

    def _seen(self, body: Body) -> Body:
        return body if self.sees else without_pictures(body)

    def developer(self, text: str) -> RenderedMessage:
        return _message(MessageKind.OTHER, {"is": "system", "text": text})

    def note(self, text: str) -> RenderedMessage:
        return _message(MessageKind.OTHER, {"is": "system", "text": text, "note": True})

    def said(self, kind: ItemKind, text: str) -> RenderedMessage:
        if kind is ItemKind.REASONING:
            return _message(KINDS[ReadKind.REASONING], {"is": "reasoning", "text": text})
        own = MessageKind.COMMENTARY if kind is ItemKind.PREAMBLE else MessageKind.FINAL
        return _message(own, {"is": "answer", "text": text})

    def call(self, name: str, arguments: str, *, hosted: bool = False, freeform: bool = False) -> RenderedMessage:
        said: prompts.Json = {"is": "call", "text": arguments, "name": name}
        flags = {"freeform": freeform, "hosted": hosted}
        return _message(KINDS[ReadKind.CALL], said | {flag: True for flag, is_so in flags.items() if is_so})

    def output(self, name: str, body: Body, *, hosted: bool = False) -> RenderedMessage:
        said: prompts.Json = {"is": "output", **prompts.said_body(self._seen(body)), "name": name}
        return _message(MessageKind.OTHER, {**said, "hosted": True} if hosted else said)

    def late_functions(self, declarations: Sequence[str], *, hosted: bool = False) -> RenderedMessage:
        lines = "\n".join(declarations)
        return self.note(f"# More functions that can be called\n\n{lines}")

    def no_such_tool(self, name: str, functions: Collection[str], hosted: Collection[str] = ()) -> RenderedMessage:
        names = ", ".join((*functions, *hosted)) or "none"
        return self.output(name, f"Error: this tool does not exist. Available tools: {names}.", hosted=True)

    def text_of(self, tokens: "Tokens[int]") -> str:
        return next((without_pictures(prompts.body_of(each.said)) for each in prompts.records(tokens)), "")

    def messages_of(self, tokens: "Tokens[int]") -> list[dict[str, Any]]:
        if prompts.is_record(tokens):
            return prompts.conversation_of(prompts.records(tokens), vocabulary="", sight=self._sight).messages
        return super().messages_of(tokens)

    def raw_prompt(self, text: str) -> "Tokens[int] | None":
        return None if self._tokenize is None else as_tokens(self._tokenize(text))

    def is_one_token(self, text: str) -> bool:
        if self._short is None:
            # Stripped: a label may be said with a space before it.
            self._short = frozenset(piece.strip() for piece in self.vocabulary.pieces if len(piece) <= LABEL)
        return text.encode() in self._short

    @property
    def longest_token(self) -> int:
        return self.vocabulary.longest

    def token_bytes(self, token: int) -> bytes:
        return self.vocabulary.token_bytes(token)

    def is_token(self, token: int) -> bool:
        return 0 <= token < len(self.vocabulary.pieces)

    def is_special(self, token: int) -> bool:
        return token in self.vocabulary.special


_START = prompts.record({"is": "start"})  # stands where a format of tokens has those that begin the answer


def _message(kind: MessageKind, said: prompts.Json) -> RenderedMessage:
    return RenderedMessage(kind, prompts.record(said))
