"""Items that come back with their seals are read as exactly the tokens that were sampled; changed ones as they are."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import orjson
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from engine.formats.base import ItemKind, ModelFormat, RenderedMessage
from engine.formats.harmony.encoding import CALL, END, RETURN, decode_tokens, encode_harmony, encode_text
from engine.formats.harmony.format import HarmonyFormat
from engine.types import FinishReason
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.items import parse_input
from responses_app.protocol.prompt.chain import ChainLink, new_link
from responses_app.protocol.prompt.rendering import Items, render_items
from responses_app.protocol.prompt.replaying import SEAL_PURPOSE, SealedOthers, read_seal
from responses_app.protocol.requests.resources import CONTINUABLE, Status
from responses_app.protocol.response.steps import OutputOptions, RunStarted, Summaries, ToolReturned
from responses_app.runs.plan.reading import UNREADABLE_THOUGHT, Unsealing
from tests.kit.plain_format import FORMAT as PLAIN
from tests.unit.protocol.machines import RESPONSE_ID, SEALER, Driver, machine, turn_of
from tests.unit.protocol.refusals import refusal
from tests.unit.protocol.test_response_machine import FORMATS, TURNS

HARMONY = HarmonyFormat()
HI: JsonObject = {"type": "message", "role": "user", "content": "hi"}


def thought(text: str) -> list[int]:
    return [*encode_harmony("<|channel|>analysis<|message|>"), *encode_text(text), END]


def said(
    *tokens: Sequence[int],
    asked: OutputOptions = OutputOptions(sealed=True),  # noqa: B008
    tools: Sequence[ToolReturned] = (),
) -> Driver:
    """Return the driver of a response that has sampled these turns."""
    driver = Driver(machine(HARMONY, hosted=True))
    driver.tell(asked)
    driver.run(RunStarted(), [turn_of(turn, [3]) for turn in tokens], tools)
    return driver


def read(items: Sequence[JsonObject], model_format: ModelFormat = HARMONY) -> list[RenderedMessage]:
    """Return what the model reads of items in a request."""
    opened = Unsealing(SEALER, "default").opened(Items(*parse_input(list(items))), named=True)
    return render_items(model_format, opened.parsed, opened.raw, parent=None, sampled={})


def tokens_of(messages: Sequence[RenderedMessage]) -> list[list[int]]:
    return [message.tokens.tolist() for message in messages]


def sampled(driver: Driver) -> list[list[int]]:
    return tokens_of(driver.machine.stream.messages)


def without(item: JsonObject, *names: str) -> JsonObject:
    return {name: value for name, value in item.items() if name not in names}


SDKS: dict[str, Callable[[JsonObject], JsonObject]] = {  # what becomes of an item on its way through a client
    "as it is": lambda item: item,
    "no ids": lambda item: without(item, "id", "status"),
    "ids of its own": lambda item: {**item, "id": "msg_of_a_client"},
    "no visible thought": lambda item: without(item, "content") if item["type"] == "reasoning" else item,
    "summaries only": lambda item: {**item, "content": None} if item["type"] == "reasoning" else item,
    "nulls": lambda item: {**item, "name": item.get("name"), "namespace": None, "output": None},
}
THOUGHT = thought("I look it up.")
USUAL_CALL = [*encode_harmony("<|channel|>commentary to=functions.f <|constrain|>json<|message|>"), *encode_text("{}")]
OTHER_ORDER = [*encode_harmony(" to=functions.f<|channel|>commentary json<|message|>"), *encode_text("{}")]
NEXT = encode_harmony("<|start|>assistant")
FINAL = encode_harmony("<|channel|>final<|message|>")
SAID_AGAIN = [*encode_harmony("<|channel|>commentary<|message|>"), *encode_text("I look it up."), END]
ANSWERED = [*encode_text("{}"), RETURN]
ODD = [*encode_text("Gr"), *encode_text("ü"), *encode_text("ß"), *encode_text("e")]


def test_what_renders_as_it_was_sampled_needs_no_more_than_the_seal_of_its_thought() -> None:
    driver = said([*THOUGHT, *NEXT, *USUAL_CALL, CALL])
    assert [item["type"] for item in driver.items] == ["reasoning", "function_call"]
    assert tokens_of(read(driver.items)) == sampled(driver)


@pytest.mark.parametrize("sdk", SDKS)
@pytest.mark.parametrize(
    "turn",
    [
        [*THOUGHT, *NEXT, *OTHER_ORDER, CALL],
        [*THOUGHT, *NEXT, *OTHER_ORDER, END, *NEXT, *USUAL_CALL, CALL],
        [*THOUGHT, *NEXT, *FINAL, *ODD, RETURN],
        [*FINAL, *ODD, RETURN],
        [*encode_harmony("<|channel|>final <|constrain|>json<|message|>"), *encode_text("{}"), RETURN],
        [*encode_harmony("<|channel|>commentary<|message|>I'll look."), END, *NEXT, *OTHER_ORDER, CALL],
        [*THOUGHT, *NEXT, *SAID_AGAIN, *NEXT, *USUAL_CALL, CALL],
        [*encode_harmony("<|channel|>commentary json<|message|>"), *encode_text("{}"), END, *NEXT, *FINAL, *ANSWERED],
    ],
    ids=[
        "a call",
        "two calls",
        "an answer",
        "without a thought",
        "JSON",
        "a preamble",
        "a thought said again",
        "said twice",
    ],
)
def test_what_does_not_is_carried_by_one_more_item(turn: list[int], sdk: str) -> None:
    driver = said(turn)
    *_, last = driver.items
    assert (last["type"], last["summary"], last["status"]) == ("reasoning", [], "completed")
    assert "content" not in last
    items = [SDKS[sdk](item) for item in driver.items]
    assert tokens_of(read([HI, *items])[1:]) == sampled(driver)
    bare = tokens_of(read([without(item, "encrypted_content") for item in driver.items]))
    assert bare != sampled(driver), "rendered, it is something else"


def test_an_answer_that_was_cut_is_carried_as_one_that_was_not() -> None:
    driver = Driver(machine(HARMONY))
    driver.tell(OutputOptions(sealed=True))
    driver.run(RunStarted(), [turn_of([*FINAL, *ODD], [3], FinishReason.LENGTH)])
    assert driver.machine.status is Status.INCOMPLETE
    assert tokens_of(read(driver.items)) == sampled(driver)


def test_what_the_model_read_and_no_item_shows_comes_back_too() -> None:
    unknown = [*encode_harmony("<|channel|>commentary to=browser.open code<|message|>1+1"), CALL]
    driver = said(unknown, [*FINAL, *encode_text("So be it."), RETURN])
    told = sampled(driver)
    assert len(told) == 3, "the call, that the tool does not exist, the answer"
    assert tokens_of(read(driver.items)) == told
    edited = [{**driver.items[0], "content": [{"type": "reasoning_text", "text": "No."}]}, *driver.items[1:]]
    assert len(read(edited)) == 2, "and not behind what was changed"


def test_what_a_tool_of_this_server_gave_back_comes_back_too() -> None:
    called = [*THOUGHT, *NEXT, *encode_harmony("<|channel|>analysis to=python code<|message|>1+1"), CALL]
    driver = said(called, [*FINAL, *encode_text("2"), RETURN], tools=[ToolReturned("2")])
    items = [{**item, "call_id": "c"} if item["type"] == "function_call" else item for item in driver.items]
    assert len(sampled(driver)) == 4
    sealed = read_seal(SEALER.open(SEAL_PURPOSE, "default", str(items[-1]["encrypted_content"])))
    assert isinstance(sealed, SealedOthers)
    assert [tokens_of(exact.messages) for _, exact in sealed.items] == [sampled(driver)[1:3]]


class TestChangedItems:
    REASONING, ANSWER, LAST = said([*THOUGHT, *NEXT, *FINAL, *ODD, RETURN]).items

    def test_another_thought_is_what_it_says(self) -> None:
        changed = {**self.REASONING, "content": [{"type": "reasoning_text", "text": "Something else."}]}
        assert tokens_of(read([changed])) == tokens_of([HARMONY.said(ItemKind.REASONING, "Something else.")])

    def test_an_answer_that_is_gone_is_gone(self) -> None:
        assert len(read([self.REASONING, self.LAST])) == 1

    def test_the_nearest_before_the_seal_is_meant(self) -> None:
        typed = [HI, self.ANSWER, {**HI, "content": "Again."}]
        messages = read([*typed, self.REASONING, self.ANSWER, self.LAST, HI, self.ANSWER])
        answers = [tokens for tokens in tokens_of(messages) if len(tokens) > 5 and "Gr" in text_of_tokens(tokens)]
        assert [tokens == answers[0] for tokens in answers] == [True, False, True], "the one in the middle is exact"

    def test_another_model_format_reads_the_text(self) -> None:
        (message,) = read([self.ANSWER], PLAIN)
        assert read([self.REASONING, self.ANSWER, self.LAST], PLAIN)[-1] == message


def text(message: RenderedMessage) -> str:
    return text_of_tokens(message.tokens.tolist())


def text_of_tokens(tokens: list[int]) -> str:
    return decode_tokens(tokens)


class TestSummaries:
    SHOWN, ANSWER = said(
        [*THOUGHT, *NEXT, *FINAL, *encode_text("Hello."), RETURN],
        asked=OutputOptions(sealed=True, summaries=Summaries.TEXT),
    ).items

    def test_a_thought_is_exact_with_its_summary_or_without_or_with_nothing_that_shows(self) -> None:
        exact = tokens_of(read([self.SHOWN]))
        assert exact == [[*NEXT, *THOUGHT]]
        for names in (["summary"], ["content"], ["content", "summary"]):
            assert tokens_of(read([without(self.SHOWN, *names)])) == exact
        assert tokens_of(read([{**self.SHOWN, "summary": []}])) == exact

    def test_another_summary_of_a_thought_that_shows_is_not_the_thought(self) -> None:
        other = [{"type": "summary_text", "text": "I gave up."}]
        (message,) = read([{**without(self.SHOWN, "content"), "summary": other}])
        assert message == HARMONY.said(ItemKind.REASONING, "I gave up.")
        (message,) = read([{**self.SHOWN, "summary": other}])
        assert message == HARMONY.said(ItemKind.REASONING, "I look it up.")


class TestBrokenSeals:
    THOUGHT = said([*THOUGHT, *NEXT, *FINAL, *encode_text("Hello."), RETURN]).items[0]
    SEAL = str(THOUGHT["encrypted_content"])
    BROKEN: ClassVar[dict[str, str]] = {
        "cut": SEAL[:-5],
        "changed": f"{SEAL[:40]}{'A' if SEAL[40] != 'A' else 'B'}{SEAL[41:]}",
        "of another project": SEALER.seal_again(SEAL_PURPOSE, "another", b"x", place="x"),
        "for another purpose": SEALER.seal("compaction", "default", b'{"summary":"x"}'),
        "of OpenAI": "gAAAAABpJ3" + "x" * 90,
        "nothing": "?",
    }

    @pytest.mark.parametrize("why", BROKEN)
    def test_in_a_request_it_is_refused_and_named(self, why: str) -> None:
        error = refusal(read, [HI, {**self.THOUGHT, "encrypted_content": self.BROKEN[why]}])
        assert (error.status, error.code) == (400, "invalid_encrypted_content")
        assert error.param == "input[1].encrypted_content"
        assert "leave 'encrypted_content' out" in error.message

    @pytest.mark.parametrize("why", BROKEN)
    def test_in_a_conversation_what_shows_is_read_or_a_note(self, why: str) -> None:
        broken = {**self.THOUGHT, "encrypted_content": self.BROKEN[why]}
        shown = {**without(broken, "content"), "summary": [{"type": "summary_text", "text": "I looked."}]}
        items = Items(*parse_input([broken, shown, without(broken, "content")]))
        told: list[str] = []
        for unsealing, named in (
            (Unsealing(SEALER, "default"), False),
            (Unsealing(SEALER, "default", note=told.append), True),
        ):
            opened = unsealing.opened(items, named=named)
            messages = render_items(HARMONY, opened.parsed, opened.raw, parent=None, sampled={})
            assert messages == [
                HARMONY.said(ItemKind.REASONING, text) for text in ("I look it up.", "I looked.", UNREADABLE_THOUGHT)
            ]
        assert told == [f"input[{place}].encrypted_content" for place in range(3)]


def written(data: bytes, *parts: object, **fields: object) -> bytes:
    """Write a seal's content as another version might: only who has the key can."""
    head = orjson.dumps({"format": "harmony", "own": True, "planes": 3, "parts": parts, **fields})
    return len(head).to_bytes(4, "big") + head + data


NONE_SEEN = ["", ""]
PART = [NONE_SEEN, "a", [1]]
STRANGE = {
    "nothing": b"",
    "no JSON": b"\0\0\0\4{{{{",
    "a length beyond its end": b"\xff\xff\xff\xff{}",
    "no object": b"\0\0\0\2[]",
    "no tokens": written(b"", PART),
    "no planes": written(b"", planes=0),
    "a billion planes": written(b"abc", PART, planes=10**9),
    "a negative length": written(b"abc", [NONE_SEEN, "aa", [2, -1]]),
    "an unknown kind": written(b"abc", [NONE_SEEN, "?", [1]]),
    "texts for lengths": written(b"abc", [NONE_SEEN, "a", ["1"]]),
    "two thoughts": written(b"abcdef", PART, PART),
    "more tokens than it says": written(b"a" * 30, PART, own=False),
}


@pytest.mark.parametrize("content", STRANGE.values(), ids=STRANGE)
def test_a_seal_with_content_of_another_version_is_a_broken_one(content: bytes) -> None:
    sealed = SEALER.seal_again(SEAL_PURPOSE, "default", content, place="x")
    error = refusal(read, [HI, {"type": "reasoning", "summary": [], "encrypted_content": sealed}])
    assert error.code == "invalid_encrypted_content"
    compacted = SEALER.seal("compaction", "default", content)
    error = refusal(read, [HI, {"type": "compaction", "encrypted_content": compacted}])
    assert error.code == "invalid_encrypted_content"


def test_a_token_of_any_size_comes_back() -> None:
    driver = said([*encode_harmony("<|channel|>analysis<|message|>"), 2**32 - 1, 2**24, 7, END, *NEXT, *FINAL, RETURN])
    assert tokens_of(read(driver.items)) == sampled(driver)


# --- any transcript ---


def link(parent: ChainLink | None, messages: Sequence[RenderedMessage], items: Sequence[JsonObject] = ()) -> ChainLink:
    return new_link(parent, response_id="r", started_on="2026-11-21", messages=messages, items=items)


@pytest.mark.parametrize("model", FORMATS)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_replay_of_everything_is_the_prompt_of_the_chain(model: str, data: st.DataObject) -> None:
    """Several responses that continue each other, with tool loops and new questions, and all their items sent again."""
    model_format = FORMATS[model]
    sdk = SDKS[data.draw(st.sampled_from(sorted(SDKS)))]
    chain: ChainLink | None = None
    replayed: list[JsonObject] = []
    for number in range(data.draw(st.integers(1, 4))):
        calls = [item for item in replayed if item["type"] == "function_call"]
        answered = {item["call_id"] for item in replayed if item["type"] == "function_call_output"}
        asked: list[JsonObject] = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": "18"}
            for call in calls
            if call["call_id"] not in answered
        ]
        if not asked or data.draw(st.booleans()):
            asked.append({**HI, "content": f"Question {number}?"})
        driver = Driver(machine(model_format, response_id=f"{RESPONSE_ID[:-1]}{number}"))
        driver.tell(OutputOptions(sealed=True, summaries=data.draw(st.none() | st.just(Summaries.TEXT))))
        driver.run(RunStarted(), [turn_of(tokens, [5]) for tokens in data.draw(TURNS[model])])
        if driver.machine.status not in CONTINUABLE:
            continue
        items = driver.items
        assume(all(str(item.get("name", "f")).isascii() for item in items))  # no client can send another name back
        parsed, raw = parse_input(asked)
        rendered = render_items(model_format, parsed, raw, parent=chain, sampled={})
        chain = link(chain, [*rendered, *driver.machine.stream.messages], [*asked, *items])
        replayed += [*asked, *map(sdk, items)]
    if chain is None:
        return
    again = link(None, read(replayed, model_format))
    event(f"more items: {sum('content' not in item for item in replayed if item['type'] == 'reasoning')}")
    assert again.prompt_tokens() == chain.prompt_tokens()
