"""The row about continuing a long conversation: in this process, no server."""

import time
from collections.abc import Callable, Iterator
from statistics import median

from openai_harmony import Conversation, HarmonyEncodingName, Message, Role, SystemContent, load_harmony_encoding

from bench.report import Result, ratio
from bench.servers import Bench
from engine.formats.base import Tokens
from engine.formats.harmony.format import HarmonyFormat
from engine.formats.harmony.prompt import render_assistant, render_text
from responses_app.protocol.prompt.chain import ChainLink, new_link
from responses_app.protocol.prompt.prompt import PromptWriter
from responses_app.protocol.prompt.rendering import render_items
from responses_app.protocol.requests.requests import parse_create

MESSAGES = 1000
ROUNDS = 9
DAY = "2026-11-20"
_TEXT = "Tell me more about it, and how the weather on the river changes what the fox does. " * 6


def continue_chain(bench: Bench) -> Iterator[Result]:
    """Work to continue a chain of 1,000 messages, beside the library's render of all of them."""
    texts = [f"Message {number}. {_TEXT}" for number in range(MESSAGES)]
    link = _chain(texts)
    request = parse_create({"input": "And then?", "reasoning": {"effort": "medium"}})
    model_format = HarmonyFormat()

    def continued() -> "Tokens[int]":
        messages = render_items(model_format, request.input, request.input_json, parent=link, sampled={})
        own = new_link(link, response_id="resp_new", started_on=DAY, messages=messages)
        return PromptWriter(model_format, 1 << 30).prompt(request, own).tokens

    conversation = _conversation([*texts, "And then?"])
    library = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)

    def rendered() -> list[int]:
        return library.render_conversation_for_completion(conversation, Role.ASSISTANT)

    tokens = list(continued())
    assert tokens == rendered(), "a continued chain is to give the same tokens as a full render"
    fronts, fulls = [], []
    for _ in bench.report.rounds(ROUNDS):
        fronts.append(_seconds(continued))
        fulls.append(_seconds(rendered))
    yield Result(
        what=f"front-end work to continue a chain of {MESSAGES:,} messages / full render",
        measured=ratio(fronts, fulls),
        target=0.02,
        details={"continue ms": median(fronts) * 1e3, "full ms": median(fulls) * 1e3, "tokens": len(tokens)},
    )


def _chain(texts: list[str]) -> ChainLink:
    """Return a chain with a link for each question and its answer."""
    link: ChainLink | None = None
    for number in range(0, len(texts), 2):
        messages = [render_text("user", texts[number]), render_assistant("final", texts[number + 1])]
        link = new_link(link, response_id=f"resp_{number}", started_on=DAY, messages=messages)
    assert link is not None
    return link


def _conversation(texts: list[str]) -> Conversation:
    system = SystemContent.new().with_conversation_start_date(DAY)
    messages = [Message.from_role_and_content(Role.SYSTEM, system)]
    for number, text in enumerate(texts):
        message = Message.from_role_and_content(Role.ASSISTANT if number % 2 else Role.USER, text)
        messages.append(message.with_channel("final") if number % 2 else message)
    return Conversation.from_messages(messages)


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
