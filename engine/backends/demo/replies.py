"""The answers of the demo engine: rules over the messages of a prompt, with no model behind them.

1. it is asked for a handoff summary      → lists what the user said
2. it is asked for a summary of a thought → says what it thought, in short
3. `repeat: TEXT`                         → TEXT, exactly
4. `think: TEXT`                          → thinks TEXT, exactly
   `agent NAME: TASK`                     → starts that agent, waits for it, and says what it said, where it may
5. `python: CODE`                         → has the server's interpreter run CODE, where it has one
   `program: CODE`                        → has CODE run as a program that calls tools, where there are programs
6. `search the files for X`, or `search for X` in the web, where that can be had → searches, and says what it found
7. `draw X`, and images can be made       → has an image of X made
8. the user names functions, or MCP tools → calls them, one a turn, in the order they are named;
   `call NAME`, and there is a search     → has a tool searched that is not shown, and calls it then
9. `describe`, and pictures are there     → says the format, the size and the mean colour of each
10. a tool has given its output           → says what it returned
11. `count to N`                          → 1 2 3 … N
12. anything else                         → says what it is, what the user said, and which user message this is

Where it is asked to go on with an answer that was cut, it says the rest of it.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.backends.demo.arguments import (
    Hints,
    ObjectType,
    ParameterType,
    make_argument,
    make_content,
    read_functions,
    read_hints,
    read_late_tools,
    read_server_tools,
)
from engine.backends.demo.tools import DemoAnswer, DemoCall, as_its_agent, of_agents, of_server_tools, search_for_tools
from engine.backends.simulated import PromptTranscript, TranscriptMessage
from engine.formats.harmony.encoding import (
    ANALYSIS,
    CALL,
    COMMENTARY,
    END,
    FINAL,
    FUNCTIONS,
    MESSAGE,
    RETURN,
    SPECIAL_TOKENS,
    START,
    decode_tokens,
    encode_harmony,
    encode_text,
)
from engine.formats.harmony.parser import parse_header
from engine.types import TurnRules

NOTHING_SEEN: Mapping[str, str] = {}
MAX_COUNT = 10_000  # numbers
MAX_READ = 20_000  # characters of the user's text that are searched for what it wants
MAX_QUOTE = 200  # characters of the user's text
MAX_REPORT = 500  # characters of what functions returned
MAX_SUMMARY = 20  # messages of the user; the oldest are left out

# The words with which the server's own requests for a summary begin.
_SUMMARY_WANTED = "Write a handoff summary of this conversation"
_THOUGHT_SUMMARY_WANTED = "Write a summary of the thought above"
_SAID = "- The user said: "
_REPEAT = "repeat:"
_THINK = "think:"
# What coding agents put between these stands in the user's message, and is not the user's.
_REMINDER, _REMINDER_END = "<system-reminder>", "</system-reminder>"
_DESCRIBE = re.compile(r"\bdescribe\b", re.IGNORECASE)
# `count to 20`, `Count to 1,000`.
_COUNT = re.compile(r"\bcount to (\d{1,3}(?:,\d{3})+|\d+)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Mention:
    """A function that the user's text names, and the text from there to the next one."""

    name: str
    text: str


def reply_tokens(
    prompt_token_ids: Sequence[int], rules: TurnRules | None = None, seen: Mapping[str, str] = NOTHING_SEEN
) -> list[int]:
    """Return the whole completion of a prompt, from the first channel to the stop token, by the rules if there are.

    `seen` says what the pictures are, by their digests.
    """
    transcript = as_its_agent(PromptTranscript(prompt_token_ids))
    reply = reply_to(transcript, seen)
    return render_reply(reply if rules is None else _by_rules(reply, transcript, rules))


def is_raw(prompt_token_ids: Sequence[int]) -> bool:
    """Whether a prompt is not a conversation, but text that is to go on."""
    return START not in prompt_token_ids


def raw_reply_tokens(prompt_token_ids: Sequence[int]) -> list[int]:
    """Return how a raw prompt goes on: with what its text would be answered as a user's message.

    It begins with a sign that is not text, by which a completion that was cut is known again: then the rest comes.
    """
    begun: list[int] = []
    prompt = list(prompt_token_ids)
    if MESSAGE in prompt:
        # From the last `<|message|>` on: the beginning of the reply, which was sampled before.
        begin = len(prompt) - 1 - prompt[::-1].index(MESSAGE)
        prompt, begun = prompt[:begin], prompt[begin:]
    text = decode_tokens(token for token in prompt if token not in SPECIAL_TOKENS)
    conversation = [START, *encode_text("user"), MESSAGE, *encode_text(text), END, START, *encode_text("assistant")]
    reply = reply_to(PromptTranscript(conversation))
    answer = reply.text if isinstance(reply, DemoAnswer) else reply.arguments
    whole = [MESSAGE, *encode_text(f" {answer}"), RETURN]
    return whole[len(begun) :] if whole[: len(begun)] == begun else whole


def reply_to(transcript: PromptTranscript, seen: Mapping[str, str] = NOTHING_SEEN) -> DemoAnswer | DemoCall:
    """Return the reply to a conversation, or what is left of one that was cut; `seen` as in `reply_tokens`."""
    reply = _chosen(transcript, seen)
    begun = _begun(transcript)
    if isinstance(reply, DemoAnswer) and begun and reply.text != begun and reply.text.startswith(begun):
        return DemoAnswer("My answer was cut. I go on with it.", reply.text.removeprefix(begun))
    return reply


def _begun(transcript: PromptTranscript) -> str:
    """Return what the assistant has answered since the user's message, where it spoke last."""
    if transcript.last is None or transcript.last.role != "assistant":
        return ""
    said = transcript.since_last_user()
    return "".join(
        each.text() for each in said if each.role == "assistant" and parse_header(each.header).channel == FINAL
    )


def _chosen(transcript: PromptTranscript, seen: Mapping[str, str]) -> DemoAnswer | DemoCall:
    text = _own_words(transcript)
    if text.startswith(_SUMMARY_WANTED):
        return DemoAnswer("A summary is wanted. I list what the user said.", _summary(transcript))
    if text.startswith(_THOUGHT_SUMMARY_WANTED):
        thoughts = (each.text() for each in reversed(transcript.messages) if ANALYSIS in each.header)
        in_short = f'**Thinking as told**\n\nThe demo engine thought: "{_quoted(next(thoughts, ""))}"'
        return DemoAnswer("A summary of my thought is wanted.", in_short)
    if text.startswith(_THINK):
        return DemoAnswer(text.removeprefix(_THINK).removeprefix(" "), "The demo engine thought what it was told.")
    if text.startswith(_REPEAT):
        return DemoAnswer("The user wants a text repeated.", text.removeprefix(_REPEAT).removeprefix(" "))
    # The rules above take a text as a whole; all others look for words in it.
    text = text[:MAX_READ]
    last = transcript.last
    # Behind a message of the assistant nothing is called: it was asked to go on.
    if last is not None and last.role != "assistant":
        reply = of_agents(transcript, text) or of_server_tools(transcript, text) or _next_call(transcript, text)
        if reply is not None:
            return reply
    pictures = _shown(transcript, seen) if _DESCRIBE.search(text) else []
    if pictures:
        sentences = [f"Image {number}: {seen[digest]}." for number, digest in enumerate(pictures, 1)]
        return DemoAnswer("The user wants pictures described.", " ".join(sentences))
    if _answers_outputs(transcript):
        return DemoAnswer("The output is here. Nothing is left to be called.", _report(transcript))
    match = _COUNT.search(text)
    # Fifteen digits at most; MAX_COUNT refuses such numbers anyway.
    end = int(match[1][:15].replace(",", "")) if match else 0
    if 1 <= end <= MAX_COUNT:
        return DemoAnswer("The user wants me to count.", " ".join(map(str, range(1, end + 1))))
    return DemoAnswer("No model is loaded. I say so, and what I was told.", _introduction(transcript, text))


def _answers_outputs(transcript: PromptTranscript) -> bool:
    """Whether outputs came last, or the user's message again behind them."""
    last = transcript.last
    if last is None or last.role == "assistant":
        return False
    said = transcript.since_last_user() if last.role == "user" else (last,)
    return any(message.output_of is not None for message in said)


def _own_words(transcript: PromptTranscript) -> str:
    """Return the user's last text, without what an agent put into it to remind the model of something."""
    message = transcript.last_user
    *reminding, last = message.text().split(_REMINDER_END) if message else [""]
    return "".join([*(each.partition(_REMINDER)[0] for each in reminding), last]).strip() if reminding else last


def _shown(transcript: PromptTranscript, seen: Mapping[str, str]) -> list[str]:
    """Return the pictures of the user's last message and of what tools gave back since, else those of all messages."""
    last = transcript.last_user
    latest = [*([last] if last else []), *transcript.since_last_user()]
    for messages in (latest, transcript.messages):
        digests = [digest for message in messages for digest in message.pictures() if digest in seen]
        if digests:
            return digests
    return []


def _by_rules(reply: DemoAnswer | DemoCall, transcript: PromptTranscript, rules: TurnRules) -> DemoAnswer | DemoCall:
    """Return a reply as the rules allow it: the call that was meant, or any where one is needed, or else an answer."""
    hints = read_hints(_own_words(transcript)[:MAX_READ])
    meant, intended = (reply.name, reply.arguments) if isinstance(reply, DemoCall) else (None, "")
    # None where the call that was meant may not be made.
    call = next((each for each in rules.calls if each.name == meant), None)
    if call is None and rules.must_call:
        made = Counter(message.called for message in transcript.since_last_user())
        call = min(rules.calls, key=lambda each: made[each.name])  # an agent that always forces a call has to end, too
        known = _declared(transcript, read_server_tools) | _declared(transcript, read_functions)
        intended = _arguments(known.get(call.name, ObjectType()), hints)
    if call is not None:
        arguments = make_content(call.content, hints, intended)
        is_code = call.hosted and call.name == "python"
        return DemoCall(reply.thought, call.name, arguments, call.hosted, is_code)
    text = reply.text if isinstance(reply, DemoAnswer) else _uncalled(transcript, reply.name)
    return DemoAnswer(reply.thought, make_content(rules.answer, hints, text or _introduction(transcript, "")))


def _uncalled(transcript: PromptTranscript, name: str) -> str:
    """Say that a call may not be made, such as one more than `max_tool_calls`, and what came of those before."""
    sentence = f"The demo engine would call {name} now, and may not."
    has_outputs = any(message.output_of is not None for message in transcript.since_last_user())
    return f"{_report(transcript)} {sentence}" if has_outputs else sentence


def without_thought(reply: Sequence[int]) -> Sequence[int]:
    """Return the tokens of a reply's last message: what a prompt asks for that begins an answer itself."""
    begin = max((place for place, token in enumerate(reply) if token == START), default=-1)
    return reply[begin + 1 + len(encode_text("assistant")) :] if begin >= 0 else reply


def render_reply(reply: DemoAnswer | DemoCall) -> list[int]:
    """Return a reply as the tokens that a model would sample after `<|start|>assistant`."""
    thought = [*encode_harmony(f"<|channel|>{ANALYSIS}<|message|>"), *encode_text(reply.thought)]
    match reply:
        case DemoAnswer(_, text):
            header, content, end = FINAL, text, RETURN
        case DemoCall(_, name, arguments, hosted, freeform):
            recipient = name if hosted else FUNCTIONS + name
            kind = "code" if freeform else "<|constrain|>json"
            header, content, end = f"{COMMENTARY} to={recipient} {kind}", arguments, CALL
    between = encode_harmony(f"<|end|><|start|>assistant<|channel|>{header}<|message|>")
    return [*thought, *between, *encode_text(content), end]


def _next_call(transcript: PromptTranscript, text: str) -> DemoCall | None:
    own, served = _declared(transcript, read_functions), _declared(transcript, read_server_tools)
    functions = served | own
    late = [name for text in _developer_texts(transcript) for name, _ in read_late_tools(text, hosted=False)]
    short = {name.rpartition(".")[2]: name for name in (*late, *served)}  # `ask` for `wiki.ask`
    made = Counter(message.called for message in transcript.since_last_user())
    for mention in _mentions(text, {*functions, *short}) if functions else ():
        name = mention.name if mention.name in functions else short[mention.name]
        # Each function once a turn, in the order they are named.
        if made[name] == 0:
            arguments = _arguments(functions[name], read_hints(mention.text, text))
            return DemoCall(f"The user names the function {name}. I call it.", name, arguments, name not in own)
        made[name] -= 1
    return search_for_tools(transcript, text, {*functions, *short})


def _arguments(parameters: ParameterType, hints: Hints) -> str:
    """Return what a call carries: a text for a tool that takes text, else JSON with white space, as models write it."""
    made = make_argument(parameters, hints)
    return made if isinstance(made, str) else json.dumps(made, ensure_ascii=False)


def _declared(
    transcript: PromptTranscript, read: Callable[[str], tuple[tuple[str, ParameterType], ...]]
) -> dict[str, ParameterType]:
    """Return what the first developer message declares in which `read` finds anything, and what came later."""
    texts = _developer_texts(transcript)
    declared = dict(next(filter(None, map(read, texts)), ()))
    for text in texts:
        declared |= dict(read_late_tools(text, hosted=read is read_server_tools))
    return declared


def _developer_texts(transcript: PromptTranscript) -> list[str]:
    return [message.text() for message in transcript.of("developer")]


def _mentions(text: str, names: Iterable[str]) -> Iterator[_Mention]:
    longest_first = sorted(names, key=len, reverse=True)
    either = "|".join(map(re.escape, longest_first))
    # A name as a whole: not within a word or a longer name, as `ask` is in `wiki.ask` or `ask.me`.
    matches = list(re.finditer(rf"(?<![\w.-])(?:{either})(?![\w-]|\.\w)", text))
    ends = [*(match.start() for match in matches), len(text)][1:]
    for match, end in zip(matches, ends, strict=True):
        yield _Mention(match[0], text[match.end() : end])


def _summary(transcript: PromptTranscript) -> str:
    """List the user's messages, those of an earlier summary first; the last one asks for the summary."""
    texts = [message.text() for message in transcript.of_user()][:-1]
    # An earlier summary's lines are taken over, so that summaries of summaries lose nothing.
    lines = [*_summed_up(transcript), *(f'{_SAID}"{_quoted(text)}"' for text in texts)]
    left_out = max(0, len(lines) - MAX_SUMMARY)
    earlier = [f"({left_out} earlier messages are left out.)"] if left_out else []
    return "\n".join(["Summary by the demo engine (no model is loaded).", *earlier, *lines[left_out:]])


def _summed_up(transcript: PromptTranscript) -> list[str]:
    """Return what an earlier summary says of the user's messages."""
    lines = (line for message in transcript.of("developer") for line in message.text().splitlines())
    return [line for line in lines if line.startswith(_SAID)]


def _report(transcript: PromptTranscript) -> str:
    outputs = [message for message in transcript.since_last_user() if message.output_of is not None]
    # At least 20 characters of each, however many there are.
    longest = max(MAX_REPORT // len(outputs), 20)
    sentences = [f"called {message.output_of} and it returned: {_output(message, longest)}" for message in outputs]
    return _shortened("The demo engine " + " It ".join(sentences), 2 * MAX_REPORT)


def _output(message: TranscriptMessage, longest: int) -> str:
    text = _shortened(message.text().strip(), longest)
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def _introduction(transcript: PromptTranscript, text: str) -> str:
    engine = "This is the demo engine (no model is loaded)."
    if not transcript.user_messages:
        return f"{engine} There is no user message in this conversation."
    earlier = len(_summed_up(transcript))
    behind = f", behind a summary of {earlier} before" if earlier else ""
    number = f"This is user message {transcript.user_messages} of this conversation{behind}."
    return f'{engine} You said: "{_quoted(text)}". {number}'


def _quoted(text: str) -> str:
    # Cut before the white space goes: a quote of a megabyte is never split into words.
    return _shortened(" ".join(text[: 10 * MAX_QUOTE].split()), MAX_QUOTE)


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
