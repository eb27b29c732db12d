"""`ModelFormat`: how one family of models is written to and read. Everything above knows this contract only.

A format renders messages to tokens and reads sampled tokens back into items:

    instructions, tools, messages ── frame(), user(), said(), … ──> prompt tokens
    sampled tokens ── TurnParser.feed() ──> ItemStarted, Text…, ItemEnded, ItemStarted, …

What a message's header means (which channel is reasoning, which recipient is a function) is decided in the format's
parser and nowhere else. `tests/unit/formats/` holds a second, tiny format to the same suite.
"""

from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count, groupby, pairwise
from typing import Any, Generic, Literal, TypeVar

from engine.types import TokenLogprob, TurnGrammar, TurnRules


class PlainKind(Enum):
    """The speaker of a message, its reader, and its purpose."""

    USER = auto()
    DEVELOPER = auto()  # instructions in the middle of a conversation
    NOTE = auto()  # of the server to the model
    REASONING = auto()
    PREAMBLE = auto()
    ANSWER = auto()
    CALL = auto()
    OUTPUT = auto()  # what a call gave back


@dataclass(frozen=True, slots=True)
class PicturePart:
    """A picture's place in a message. A message has no more of it than this, and keeps it as tokens."""

    digest: str  # SHA-256 in lower-case hexadecimal, by which the picture itself is found


Body = str | Sequence[str | PicturePart]  # what a user or a tool says: text, with pictures in it
IMAGE_OMITTED = "[image omitted: this model cannot see images]"


def parts_of(body: Body) -> Sequence[str | PicturePart]:
    """Return the parts of a body: pictures, and all text between two of them in one."""
    if isinstance(body, str):
        return (body,)
    parts: list[str | PicturePart] = []
    for is_text, group in groupby(body, lambda part: isinstance(part, str)):
        few = list(group)
        parts += ["".join(map(str, few))] if is_text else few
    return parts or ("",)


def without_pictures(body: Body) -> str:
    """Return a body as a model reads it that cannot see."""
    return (
        body
        if isinstance(body, str)
        else "".join(IMAGE_OMITTED if isinstance(part, PicturePart) else part for part in body)
    )


@dataclass(frozen=True, slots=True)
class PlainMessage:
    """A message in no format's own words: so a conversation goes on with a model of another format."""

    kind: PlainKind  # who says it to whom, and what it is
    body: Body  # of a call: its arguments; pictures are in what a user or a tool says alone
    name: str = ""  # of what a call calls, or whose output it is, without a format's own prefix
    hosted: bool = False  # a tool of the server's; else a function of the client's
    freeform: bool = False  # it is called with text, which is not JSON

    @property
    def text(self) -> str:
        """The body without its pictures."""
        return without_pictures(self.body)


Tokens = array  # of unsigned 32-bit token ids: 4 bytes each, concatenated by memcpy


def as_tokens(token_ids: Iterable[int] = ()) -> "Tokens[int]":
    """Pack token ids."""
    return array("I", token_ids)


Role = Literal["system", "developer", "user", "tool", "assistant", "prompt"]  # "prompt": nobody knows whose it is
Begins = tuple[int, Role]  # the place of a message's first token, and whose the message is
HEADER = 24  # tokens of a message by which it is known whose it is; the first of them is its sign


class MessageKind(Enum):
    """The kinds of messages that the rule which drops old reasoning tells apart."""

    USER = "u"
    ANALYSIS = "a"  # the model's reasoning
    FINAL = "f"  # its answer
    COMMENTARY = "c"  # its preambles and calls
    OTHER = "o"  # developer messages and tool outputs


@dataclass(frozen=True, slots=True)
class RenderedMessage:
    """One message as the model reads it in a later turn: all its tokens, from its beginning to its end."""

    kind: MessageKind  # decides whether the message is dropped from a later prompt
    tokens: "Tokens[int]"  # never changed once it is in a chain: another rendering would miss the engine's prefix cache


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function the model may call."""

    name: str  # as the model calls it, without a namespace
    description: str
    schema: str  # the JSON schema of its parameters, as JSON text; "" for none
    freeform: bool = False  # it is called with text as it is, which is not JSON


@dataclass(frozen=True, slots=True)
class ToolNamespace:
    """Tools of the server's own. A format may know some names that its models were trained on (`python`, `browser`)."""

    name: str  # `browser`, as the model writes it
    description: str = ""
    functions: tuple[FunctionTool, ...] = ()  # called as `NAME.FUNCTION`; where there are none, `NAME` alone, with text


class ItemKind(Enum):
    """The kinds of items that a model says."""

    REASONING = auto()
    PREAMBLE = auto()  # said before a call, to the user
    ANSWER = auto()
    CALL = auto()  # of a function that the client declared, or may have declared
    HOSTED_CALL = auto()  # of a tool that the server itself would run: python, browser, …


@dataclass(frozen=True, slots=True)
class ItemStarted:
    """An item begins."""

    kind: ItemKind  # what it is, as the header or the tags say
    name: str | None = None  # of what a call calls, without the format's own prefix


@dataclass(frozen=True, slots=True)
class TextLogprob:
    """A `TokenLogprob` that nobody needs a vocabulary for: every token is the bytes it stands for."""

    token: bytes  # its bytes, which may be a part of a character
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()  # the likeliest tokens at its place, likeliest first


@dataclass(slots=True)  # not frozen: there is one a token, and a frozen one takes four times as long to make
class Text:
    """More text of the open item; never empty."""

    text: str  # never half a character
    logprobs: tuple[TextLogprob, ...] = ()  # of the tokens that it is, where they are known


@dataclass(frozen=True, slots=True)
class ItemEnded:
    """The open item ends."""

    message: RenderedMessage  # how the model reads it in a later turn
    reasoning_tokens: int = 0  # of its tokens, those that count as reasoning
    truncated: bool = False  # the generation ended before the item did
    called: bool = False  # the model waits for what the call gives back


TurnEvent = ItemStarted | Text | ItemEnded


class TurnParser(ABC):
    """Reads one generation. The items and texts do not depend on how the tokens were cut into chunks."""

    repairs: int = 0  # how many items were malformed

    @abstractmethod
    def feed(self, token_ids: Iterable[int]) -> list[TurnEvent]:
        """Take sampled tokens, return what they complete. Raises nothing, whatever the model says."""

    @abstractmethod
    def close(self) -> list[TurnEvent]:
        """End the generation: an open item is truncated, text that belongs to none becomes one."""

    def is_end(self, token: int) -> bool:
        """Whether a token ends an item, and so is part of no text."""
        return False


class UnreadableMessage(ValueError):
    """A message that cannot be rendered; `index` says which, the text what is wrong with it."""

    def __init__(self, index: int, hint: str) -> None:
        super().__init__(hint)
        self.index = index


class ModelFormat(ABC):
    """One family of models. Stateless; shared by all responses."""

    name: str  # as an operator names it
    stop_tokens: tuple[int, ...]  # the engine ends a generation at any of them
    renders_elsewhere: bool = False  # `prompt_of` waits for somebody else, so it is not called on an event loop
    is_loaded: bool = True  # else `load` is to be called, once, before anything else
    sees: bool = False  # pictures reach the model; else it reads `IMAGE_OMITTED` in their places
    picture_token: int | None = None  # stands for a picture in prompts; None where it does not see

    def load(self) -> None:  # noqa: B027 - most are made of nothing that is to be read
        """Read what it is made of, which may take seconds. Raises `EngineConfigurationError`."""

    def at_effort(self, effort: object) -> "ModelFormat":
        """Return the format of a response with an effort as it was asked for: a model that does not think is read so.

        It is the same format for all efforts, where that makes no difference.
        """
        return self

    @abstractmethod
    def parser(self, functions: Collection[str] | None = ()) -> TurnParser:
        """Return what reads one generation, whose prompt ended with `generation_start`.

        `functions` are the names that the request declared; None where it forbids calls.
        """

    @abstractmethod
    def grammar(self, rules: TurnRules, behind: Sequence[int] = ()) -> TurnGrammar | None:
        """Return what holds an engine to some rules, `behind` tokens of the turn that were sampled already.

        Behind the middle of a content that has a rule, that one content goes on as any text (`loose`). None where the
        format has no grammar, and where the tokens have broken the rules. Raises `GrammarRefused` for a grammar of the
        request's that cannot be used.
        """

    def problem_of(self, rules: TurnRules, tokens: Sequence[int]) -> str | None:
        """Say what in the beginning of a turn breaks some rules; None for nothing, and where the format has no grammar.

        Blocks for as long as it takes to check a content: seconds, for a hostile one.
        """
        return None

    @abstractmethod
    def frame(
        self,
        *,
        instructions: str | None,
        functions: Sequence[FunctionTool],
        effort: str,
        date: str,
        namespaces: Sequence[ToolNamespace] = (),
    ) -> "Tokens[int]":
        """Render what stands before the first message, as an array that is the caller's own.

        `effort` is none, low, medium or high, `date` ISO 8601. `namespaces` are the tools that this server runs.
        """

    @abstractmethod
    def generation_start(self) -> Sequence[int]:
        """Return the tokens that ask the model to go on."""

    def answer_start(self) -> Sequence[int]:
        """Return the tokens with which an answer begins behind `generation_start`; none where the model chooses."""
        empty = self.said(ItemKind.ANSWER, "").tokens
        # Without what `generation_start` has already, and without the token that ends the message.
        return empty[len(self.generation_start()) : -1]

    def answer_at_once(self) -> Sequence[int]:
        """Return the tokens behind a prompt with which an answer begins before which the model thinks nothing."""
        return self.answer_start()

    def prompt_of(self, draft: "Tokens[int]") -> "Tokens[int]":
        """Return the tokens that the engine is given for a draft: `frame`, messages and `generation_start` in a row.

        Most formats are concatenative, and then the draft is the prompt. Where a format writes messages in a shape of
        its own and has the prompt rendered as a whole, drafts and messages are in that shape, and their lengths only
        estimate the prompt's. Raises `EngineUnavailable` where who renders is away, `NotRendered` where it refuses.
        """
        return draft

    def wrote(self, first: int) -> bool:
        """Whether a message that begins with this token is one of this format's, and not of another one."""
        return True

    def render_plain(self, message: PlainMessage) -> RenderedMessage:
        """Render a message that was told in another format."""
        match message.kind:
            case PlainKind.USER:
                return self.user(message.body)
            case PlainKind.DEVELOPER:
                return self.developer(message.text)
            case PlainKind.NOTE:
                return self.note(message.text)
            case PlainKind.CALL:
                return self.call(message.name, message.text, hosted=message.hosted, freeform=message.freeform)
            case PlainKind.OUTPUT:
                return self.output(message.name, message.body, hosted=message.hosted)
        # What is left are the model's own kinds, which have the same names in both enums.
        return self.said(ItemKind[message.kind.name], message.text)

    def pictures_of(self, draft: "Tokens[int]") -> Sequence[str]:
        """Return the digests of the pictures in a draft or in a message, in the order of their tokens in the prompt.

        None where the model does not see, whatever the draft has.
        """
        return ()

    def picture_places(self, prompt: "Tokens[int]") -> Sequence[int]:
        """Return where the pictures of a prompt stand, each by its first token."""
        return ()

    @property
    def vocabulary_name(self) -> str:
        """A name of its vocabulary, told from others; empty where tokens do not say whose a message is."""
        return ""

    def messages_in(self, tokens: "Tokens[int]", *, whole: bool) -> Sequence[Begins]:
        """Return where messages begin among tokens of a prompt, and whose they are; nothing where nobody knows.

        Without `whole` they are a part of the prompt: what stands before the first message is the end of another one.
        """
        return ()

    @abstractmethod
    def user(self, body: Body) -> RenderedMessage:
        """Render what a user wrote, and showed."""

    @abstractmethod
    def developer(self, text: str) -> RenderedMessage:
        """Render instructions in the middle of a conversation."""

    @abstractmethod
    def note(self, text: str) -> RenderedMessage:
        """Render what the server itself tells the model: a summary of an earlier part. It is not an instruction."""

    @abstractmethod
    def said(self, kind: ItemKind, text: str) -> RenderedMessage:
        """Render reasoning, a preamble or an answer of the model that was not sampled here."""

    @abstractmethod
    def call(self, name: str, arguments: str, *, hosted: bool = False, freeform: bool = False) -> RenderedMessage:
        """Render a call that was not sampled here. `hosted`: of a tool of a server's, else of the client's function.

        `freeform`: what it is called with is text as it is, which is not JSON.
        """

    @abstractmethod
    def output(self, name: str, body: Body, *, hosted: bool = False) -> RenderedMessage:
        """Render what a tool gave back; `name` and `hosted` as in `call`."""

    @abstractmethod
    def late_functions(self, declarations: Sequence[str], *, hosted: bool = False) -> RenderedMessage:
        """Render functions that were declared in the middle of a conversation, each as a JSON object.

        `hosted`: they are tools of a server's.
        """

    @abstractmethod
    def no_such_tool(self, name: str, functions: Collection[str], hosted: Collection[str] = ()) -> RenderedMessage:
        """Render what the model is told that has called a tool which does not exist.

        `functions` are those that it has of the client's, `hosted` those of the server's.
        """

    @abstractmethod
    def text_of(self, tokens: "Tokens[int]") -> str:
        """Return the text of a message that `user` has rendered."""

    def messages_of(self, tokens: "Tokens[int]") -> list[dict[str, Any]]:
        """Return the messages that tokens of a prompt, or of a turn, are, as JSON in the model's own words.

        A format that has no such words gives their text beside the tokens themselves.
        """
        text = b"".join(map(self.token_bytes, tokens)).decode(errors="replace")
        return [{"type": "raw_message_tokens", "message": text, "tokens": list(tokens)}]

    def render_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[RenderedMessage]:
        """Render messages in the model's own words, as `messages_of` returns them.

        Instructions among them are left out. Raises `UnreadableMessage`.
        """
        if messages:
            raise UnreadableMessage(0, "This model has no messages of its own; send items in 'input'.")
        return []

    def raw_prompt(self, text: str) -> "Tokens[int] | None":
        """Return a text that is a whole prompt as tokens, with the special tokens that it spells out.

        None where nobody knows how text becomes tokens. A format that `renders_elsewhere` waits for somebody else here,
        too, and raises `EngineUnavailable` or `NotRendered`.
        """
        return None

    def is_one_token(self, text: str) -> bool:
        """Whether the model may say a short text as one token, with a space before it or without."""
        return False

    @property
    def longest_token(self) -> int | None:
        """How many bytes no token has more than; None where nobody knows.

        So a text has at least as many tokens as it has characters, divided by this.
        """
        return None

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for. Raises nothing, whatever the id."""

    def is_token(self, token: int) -> bool:
        """Whether the model has such a token. An engine is never given another one: it may break by it."""
        return False

    def is_special(self, token: int) -> bool:
        """Whether a token is a sign of the format's own, and no text."""
        return False

    def spelled(self, logprob: TokenLogprob) -> TextLogprob:
        """Return a log probability with the bytes of its tokens."""
        top = tuple((self.token_bytes(token), value) for token, value in logprob.top)
        return TextLogprob(self.token_bytes(logprob.token_id), logprob.logprob, top)


def messages_in(
    tokens: "Tokens[int]", signs: Mapping[int, Role | None], named: Callable[["Tokens[int]"], Role]
) -> list[Begins]:
    """Return where messages begin among tokens, in order.

    `signs` say whose a message is that begins with them, None where `named` reads it from what stands behind the sign.
    """
    places = [place for place, token in enumerate(tokens) if token in signs]
    found: list[Begins] = []
    for place, following in pairwise((*places, len(tokens))):
        role = signs[tokens[place]]
        found.append((place, named(tokens[place + 1 : min(following, place + HEADER)]) if role is None else role))
    return found


Value = TypeVar("Value")


class Unanswered(Generic[Value]):
    """Calls in the order in which they were made, each with a value.

    Some models and proxies give all calls of a turn one id, or count from the same number in each turn. So outputs
    answer the calls of their id in order, and a call of a later turn takes the place of all earlier ones of its id.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._order = count()
        # By their ids: the turn, and the calls by their kinds.
        self._waiting: dict[str, tuple[int, dict[str, deque[tuple[int, Value]]]]] = {}
        self._latest: dict[str, Value] = {}

    def next_turn(self) -> None:
        """Begin another turn of the model."""
        self._turn += 1

    def add(self, call_id: str, value: Value, *, kind: str = "", waits: bool = True) -> None:
        """Add a call; one that does not wait is only the latest of its id."""
        self._latest[call_id] = value
        if waits:
            turn, kinds = self._waiting.get(call_id, (-1, {}))
            if turn != self._turn:
                self._waiting[call_id] = self._turn, (kinds := {})
            kinds.setdefault(kind, deque()).append((next(self._order), value))

    def answer(self, call_id: str, *, kinds: Collection[str] | None = None) -> Value | None:
        """Return the call of an id, and of one of these kinds, that an output answers; None where none waits."""
        waiting = self._waiting.get(call_id, (-1, {}))[1]
        firsts = [(calls[0][0], kind) for kind, calls in waiting.items() if calls and (kinds is None or kind in kinds)]
        return waiting[min(firsts)[1]].popleft()[1] if firsts else None

    def latest(self, call_id: str) -> Value | None:
        """Return the latest call of an id, be it answered or not."""
        return self._latest.get(call_id)

    def left(self) -> list[Value]:
        """Return the calls that no output has answered, by their ids."""
        return [
            value
            for _, kinds in self._waiting.values()
            for _, value in sorted((each for calls in kinds.values() for each in calls), key=lambda each: each[0])
        ]
