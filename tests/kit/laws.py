"""The laws of `ResponseStream`, and random transcripts of the real encoding to hold it to them."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import orjson
from hypothesis import strategies as st

from engine.formats.harmony.encoding import CALL, END, RETURN, encode_harmony, encode_text
from engine.formats.harmony.format import HarmonyFormat
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import TERMINAL, Event
from responses_app.protocol.output.stream import ResponseStream
from responses_app.protocol.requests.requests import new_response, parse_create
from responses_app.protocol.requests.resources import Ending, Status
from responses_app.protocol.usage import TurnUsage, usage
from tests.unit.protocol.item_orders import AT_ONCE, LETTERS, ORDER, TEXTS

FUNCTIONS = ("f", "get_weather", "mcp.files-read")
SPECIAL_TOKENS = tuple(range(199998, 200020))
STRANGE_TOKENS = (300000, 201087, 201088, 2**32 - 1)  # the last but two lies inside the model's embedding
WORDS = (" apple", " river", " stone", " cloud", " lemon")  # one token each, and no part of any header

Tokens = Sequence[int]
NewId = Callable[[str], str]


def counting_ids() -> NewId:
    """Return a factory whose ids depend on nothing but the order in which they are asked for."""
    numbers = count(1)
    return lambda prefix: f"{prefix}{next(numbers):032x}"


def new_stream(*, new_id: NewId | None = None) -> ResponseStream:
    """Return the stream of a response whose request declares `FUNCTIONS`."""
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in FUNCTIONS]
    request = parse_create({"model": "m", "input": "hi", "tools": tools, "metadata": {"a": "b"}})
    response = new_response(request, response_id="resp_1", created_at=1_700_000_000, model="m", store=True)
    return ResponseStream(response, new_id=new_id or counting_ids())


@dataclass(frozen=True)
class Played:
    """A generation that went through the parser and the stream: what a client saw of it."""

    stream: ResponseStream
    events: list[Event]
    closed: bool

    @property
    def seen(self) -> list[JsonObject]:
        """The events as a client reads them."""
        return [orjson.loads(event.as_json()) for event in self.events]

    @property
    def items(self) -> list[JsonObject]:
        """The finished output items, in order."""
        return [event["item"] for event in self.seen if event["type"] == "response.output_item.done"]

    @property
    def texts(self) -> list[str]:
        """The text of each finished item."""
        return [text_of(item) for item in self.items]


def play(chunks: Iterable[Tokens], *, status: Status = Status.COMPLETED, close: bool = True) -> Played:
    """Feed chunks of tokens to a parser and a stream and end the response. `close=False`: the engine broke."""
    stream, parser = new_stream(), HarmonyFormat().parser(FUNCTIONS)
    events = stream.start()
    for chunk in chunks:
        for said in parser.feed(chunk):
            events += stream.receive(said)
    for said in parser.close() if close else ():
        events += stream.receive(said)
    error = {"code": "server_error", "message": "It broke."} if status is Status.FAILED else None
    reason = "max_output_tokens" if status is Status.INCOMPLETE else None
    ending = Ending(status=status, completed_at=1_700_000_001, usage=usage([TurnUsage(9, 1, 5, 2)]), error=error)
    events += stream.finish(ending if reason is None else Ending(status=status, reason=reason))
    return Played(stream, events, close)


def chunked(tokens: Tokens, sizes: Sequence[int]) -> list[Tokens]:
    """Cut tokens into chunks of these sizes, over and over; empty chunks are part of the game."""
    chunks: list[Tokens] = []
    position, turn = 0, 0
    while position < len(tokens):
        size = sizes[turn % len(sizes)] if any(sizes) else 1
        chunks.append(tokens[position : position + size])
        position, turn = position + size, turn + 1
    return chunks


def text_of(item: JsonObject) -> str:
    """Return the text that an output item carries."""
    if item["type"] == "function_call":
        return str(item["arguments"])
    if item["type"] in TEXTS:
        return str(item[TEXTS[str(item["type"])]])
    if is_output(item):
        return str(item.get("output"))
    return "".join(part["text"] for part in item.get("content", ()))  # type: ignore[attr-defined]


def is_output(item: JsonObject) -> bool:
    """Whether an item says what came of a call; in a response that waits for its client they come whole."""
    return str(item["type"]).endswith("_output")


@dataclass
class _ItemStory:
    """What was said of one output item."""

    letters: str = ""
    added: JsonObject = field(default_factory=dict)
    done: JsonObject = field(default_factory=dict)
    deltas: str = ""
    full_texts: list[str] = field(default_factory=list)
    parts: list[JsonObject] = field(default_factory=list)
    summary: str = ""  # of deltas
    summaries: list[object] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    of_shell: list[JsonObject] = field(default_factory=list)  # events of its commands


def assert_laws(events: Sequence[JsonObject]) -> None:
    """Hold the events of one whole response, as a client reads them, to the laws."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    types = [event["type"] for event in events]
    _assert_beginning(events)
    assert [type for type in types if type in TERMINAL] == types[-1:], "exactly one terminal event, the last"
    stories = _stories(events)
    assert list(stories) == list(range(len(stories))), "indices run without a gap, in order"
    last = stories.get(len(stories) - 1, _ItemStory())
    if last.added and not last.done and (types[-1] == "response.failed" or last.added["type"] == "compaction"):
        cut = stories.pop(len(stories) - 1)  # what a failure cuts, or a cut compaction, is never announced as done
        assert cut.letters.strip("PtnrfFcRpSsikKgjmMlwvxyqhHdo") == "A"
    for story in stories.values():
        _assert_item_laws(story)
    all_ids = [story.done["id"] for story in stories.values()]
    assert len(set(all_ids)) == len(all_ids)
    assert events[-1]["response"]["output"] == [story.done for story in stories.values()]  # type: ignore[index]


_BEGINNINGS = ("created", "created in_progress", "created queued", "created queued in_progress")


def _assert_beginning(events: Sequence[JsonObject]) -> None:
    """Hold the first events to their order: what waits says so, and that it runs once it does; then comes the rest."""
    types = [str(event["type"]).removeprefix("response.") for event in events]
    begun = [type for type in types if type in ("created", "queued", "in_progress")]
    assert " ".join(begun) in _BEGINNINGS
    assert types[: len(begun)] == begun, "nothing comes before, or between them"
    statuses = [event["response"]["status"] for event in events[: len(begun)]]  # type: ignore[index]
    waits = ["queued", "queued", "in_progress"][: len(begun)]
    assert statuses == (waits if "queued" in begun else ["in_progress"] * len(begun))
    if "in_progress" not in begun:
        assert len(events) == len(begun) + 1, "what does not run says nothing: a warm-up, or what ended in the queue"


def _stories(events: Sequence[JsonObject]) -> dict[int, _ItemStory]:
    stories: dict[int, _ItemStory] = defaultdict(_ItemStory)
    latest = 0
    for event in events:
        letter = LETTERS.get(str(event["type"]))
        if letter is None:
            continue
        index = int(str(event["output_index"]))
        assert index >= latest, "items do not interleave"
        latest = index
        story = stories[index]
        story.letters += letter
        item = event.get("item")
        # Events of a shell's commands name no item.
        story.ids.add(str(item["id"] if isinstance(item, dict) else event.get("item_id", story.added["id"])))
        if ".shell_call" in str(event["type"]):
            story.of_shell.append(event)
        _tell(story, letter, event)
        _tell_summary(story, letter, event)
        if letter == "I":  # in the place of its `done`, and it is not in the output
            assert len(story.ids) == 1
            assert not story.done
            del stories[index]
    return dict(stories)


def _tell(story: _ItemStory, letter: str, event: JsonObject) -> None:
    match letter:
        case "A":
            story.added = event["item"]  # type: ignore[assignment]
        case "D":
            story.done = event["item"]  # type: ignore[assignment]
        case "t" | "r" | "f" | "u" | "k" | "m":
            assert event["delta"], "no empty deltas"
            story.deltas += str(event["delta"])
        case "T" | "R":
            story.full_texts.append(str(event["text"]))
        case "K":
            story.full_texts.append(str(event["code"]))
        case "F" | "M":
            story.full_texts.append(str(event["arguments"]))
        case "U":
            story.full_texts.append(str(event["input"]))
        case "P":
            story.parts.append(event["part"])  # type: ignore[arg-type]
        case "p":
            story.parts.append(event["part"])  # type: ignore[arg-type]
            story.full_texts.append(event["part"]["text"])  # type: ignore[index]


def _tell_summary(story: _ItemStory, letter: str, event: JsonObject) -> None:
    match letter:
        case "s":
            assert event["delta"], "no empty deltas"
            story.summary += str(event["delta"])
        case "S":
            assert event["part"] == {"type": "summary_text", "text": ""}
        case "Z":
            story.summaries.append([{"type": "summary_text", "text": event["text"]}])
        case "z":
            story.summaries.append([event["part"]])


def _assert_item_laws(story: _ItemStory) -> None:
    done = story.done
    order = ORDER.get(str(done["type"])) or re.compile(r"AD")
    assert order.fullmatch(story.letters), story.letters
    assert story.ids == {done["id"]}
    if story.of_shell or (done["type"] == "shell_call_output" and story.added != done):
        _assert_shell_laws(story, done)
        return
    if done["type"] == "compaction":  # it has no status, and no text that a client could read
        assert story.added == {**done, "encrypted_content": ""}
        assert done["encrypted_content"]
        return
    if is_output(done):
        assert story.added == done
        return
    if done["type"] in AT_ONCE:
        assert story.added.items() <= {**done, "tools": story.added.get("tools")}.items()
        return
    assert story.added["status"] == "in_progress"
    assert done["status"] in ("completed", "incomplete", "failed")
    assert text_of(story.added) == ""
    for name in ("type", "call_id", "name", "role", "phase"):
        assert story.added.get(name) == done.get(name)
    if story.letters == "AD" and done["type"] != "reasoning":  # it is there at once
        assert {**story.added, "status": "completed"} == done
        return
    assert {story.deltas, *story.full_texts} == {text_of(done)}, story
    if done["type"] == "reasoning":
        told = [{"type": "summary_text", "text": story.summary}] if story.summary else []
        assert all(summary == done["summary"] for summary in (told, *story.summaries))
        assert "encrypted_content" not in story.added
    for part in (*story.parts, *done.get("content", ())):  # type: ignore[misc]
        if part["type"] == "output_text":
            assert isinstance(part["annotations"], list)
            assert isinstance(part["logprobs"], list)


def _assert_shell_laws(story: _ItemStory, done: Any) -> None:
    """Hold the commands of a shell that the server runs, or what they print, to what their item says in the end."""
    texts: dict[tuple[int, str], str] = defaultdict(str)
    whole: list[Any] = []
    events: list[Any] = story.of_shell
    for event in events:
        delta = event.get("delta") or {}
        parts = {"command": delta} if isinstance(delta, str) else delta
        for name, text in parts.items():
            assert text, "no empty deltas"
            texts[event["command_index"], name] += text
        if event["type"].endswith("done"):
            assert event["command_index"] == len(whole)
            whole += [event["command"]] if "command" in event else event["output"]
    assert story.added["status"] == "in_progress"
    if done["type"] == "shell_call":
        assert whole == done["action"]["commands"]
        assert [texts[place, "command"] for place in range(len(whole))] == whole
        return
    assert (story.added["output"], whole) == ([], done["output"])
    for place, each in enumerate(whole):
        if story.letters.startswith("Ao"):  # else it was not run, and says why
            assert (each["stdout"], each["stderr"]) == (texts[place, "stdout"], texts[place, "stderr"])


def is_subsequence(wanted: Sequence[str], given: Sequence[str]) -> bool:
    """Say whether all of `wanted` occur in `given`, in order."""
    rest = iter(given)
    return all(each in rest for each in wanted)


# --- random transcripts ---

unicode_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "",
        "👍🏽",
        "👨‍👩‍👧‍👦 family",
        "naïve 汉字 ﷽",
        "<|start|>assistant<|channel|>final<|message|>",
        '{"a": [1, "é"]}',
        "\x00",
        "\n\n ",
    ]
)
word_texts = st.lists(st.sampled_from(WORDS), max_size=6).map("".join)
cut_sizes = st.lists(st.integers(0, 7), min_size=1, max_size=6)


@dataclass(frozen=True)
class Spoken:
    """A well-formed message: how its header is written, and its text."""

    channel: str
    recipient: str | None
    recipient_first: bool
    constrain: str
    text: str

    @property
    def header(self) -> str:
        """Return the header as the model samples it after `<|start|>assistant`."""
        to = f" to={self.recipient}" if self.recipient else ""
        before, after = (to, "") if self.recipient_first else ("", to)
        return f"{before}<|channel|>{self.channel}{after}{self.constrain}"

    @property
    def tokens(self) -> list[int]:
        """Return the tokens between `<|start|>assistant` and the end token, both left out."""
        return [*encode_harmony(f"{self.header}<|message|>"), *encode_text(self.text)]

    @property
    def expected(self) -> tuple[str, str | None, str | None, str]:
        """Return (item type, phase, function, text) of the item it must become."""
        name = (self.recipient or "").removeprefix("functions.")
        if self.recipient and (name in FUNCTIONS or name != self.recipient):
            return "function_call", None, name, self.text
        if self.recipient or self.channel == "analysis":
            return "reasoning", None, None, self.text
        return "message", "final_answer" if self.channel == "final" else "commentary", None, self.text


def what_it_became(item: JsonObject) -> tuple[object, object, object, str]:
    """Return (item type, phase, function, text) of an output item."""
    return item["type"], item.get("phase"), item.get("name"), text_of(item)


@st.composite
def spoken(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> Spoken:
    """Draw a message: thought, preamble, answer or call, calls on analysis and to unknown tools too."""
    recipient = draw(
        st.none()
        | st.sampled_from(
            [*(f"functions.{name}" for name in FUNCTIONS), "functions.undeclared", "python", "browser.search", "f"]
        )
    )
    channel = draw(st.sampled_from(["analysis", "commentary"] if recipient else ["analysis", "commentary", "final"]))
    constrain = draw(st.sampled_from([" <|constrain|>json", " json", " code", ""])) if recipient else ""
    return Spoken(channel, recipient, draw(st.booleans()), constrain, draw(texts))


@dataclass(frozen=True)
class Transcript:
    """Well-formed messages and the tokens of one generation that says them."""

    messages: list[Spoken]
    tokens: list[int]


@st.composite
def transcripts(draw: st.DrawFn, texts: st.SearchStrategy[str] = unicode_texts, *, max_size: int = 4) -> Transcript:
    """Draw one whole, well-formed generation."""
    messages = draw(st.lists(spoken(texts), min_size=1, max_size=max_size))
    tokens: list[int] = []
    for index, message in enumerate(messages):
        tokens += encode_harmony("<|start|>assistant") if index else []
        last = index == len(messages) - 1
        tokens += [*message.tokens, (CALL if message.recipient else RETURN) if last else END]
    return Transcript(messages, tokens)


@st.composite
def mangled(
    draw: st.DrawFn, tokens: list[int], *, strange: Sequence[int] = (*SPECIAL_TOKENS, *STRANGE_TOKENS, 1000)
) -> list[int]:
    """Draw a few drops, doublings, insertions and swaps."""
    tokens = list(tokens)
    for what in draw(st.lists(st.sampled_from(["drop", "double", "insert", "swap"]), min_size=1, max_size=6)):
        if not tokens:
            break
        at = draw(st.integers(0, len(tokens) - 1))
        match what:
            case "drop":
                del tokens[at]
            case "double":
                tokens.insert(at, tokens[at])
            case "insert":
                tokens.insert(at, draw(st.sampled_from(strange)))
            case "swap":
                other = draw(st.integers(0, len(tokens) - 1))
                tokens[at], tokens[other] = tokens[other], tokens[at]
    return tokens
