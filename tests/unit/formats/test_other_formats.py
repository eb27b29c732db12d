"""A conversation goes on with models of other formats: gpt-oss and two families in one server, in any order."""

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.formats.base import ItemKind, MessageKind, ModelFormat, RenderedMessage, Told, ToldKind
from engine.formats.harmony.format import HarmonyFormat
from engine.models.formats import told_of
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.prompt.chain import ChainLink, new_link
from responses_app.protocol.requests.requests import parse_create
from responses_app.runs.plan.plan import Origin
from responses_app.runs.planning.history import _chain, _Rewrite
from responses_app.stores.stores import ConversationEntry, ConversationRecord
from tests.kit.fakes import TOOL_F, FakeEngine, Reading, Site
from tests.unit.formats.families import LLAMA, QWEN, Family
from tests.unit.formats.rendering import format_of
from tests.unit.formats.test_chat_template import CALLS, FamilyEngine, output_of
from tests.unit.runs.test_several_models import model_of

HARMONY_CALL = (
    "<|channel|>analysis<|message|>Hm.<|end|>"
    '<|start|>assistant to=functions.f<|channel|>commentary<|message|>{"a": 1}<|call|>'
)
MODELS = ("fake", "qwen", "llama")
FORMATS: dict[str, ModelFormat] = {"fake": HarmonyFormat(), "qwen": format_of(QWEN)[0], "llama": format_of(LLAMA)[0]}


class Three(Site):
    """A server with gpt-oss (`fake`), a Qwen3-like and a Llama-like model, each of which calls, and then answers."""

    def __init__(self) -> None:
        self.engines: dict[str, FakeEngine] = {"fake": FakeEngine([HARMONY_CALL])}
        others = []
        for family in (QWEN, LLAMA):
            made, renderer = format_of(family)
            self.engines[family.name] = FamilyEngine(family, renderer, (CALLS[family.name],))
            others.append(replace(model_of(family.name, self.engines[family.name]), format=made))
        super().__init__(self.engines["fake"], more_models=others)

    def text(self, model: str) -> str:
        """Return the latest prompt of a model, whose tokens are all its own."""
        prompt, model_format = self.engines[model].prompts[-1], FORMATS[model]
        assert all(map(model_format.is_token, prompt)), "no token of another vocabulary"
        return b"".join(map(model_format.token_bytes, prompt)).decode()


def answers(site: Three) -> None:
    ends: dict[str, Family] = {"qwen": QWEN, "llama": LLAMA}
    for name, engine in site.engines.items():
        said = f"18, says {name}."
        turn = f"{said}{ends[name].end}" if name in ends else f"<|channel|>final<|message|>{said}<|return|>"
        engine.turns = [[turn]]


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "remembered"])
@pytest.mark.parametrize("order", list(permutations(MODELS)), ids="-".join)
async def test_a_tool_loop_goes_on_with_another_model_and_back(order: tuple[str, ...], stored: bool) -> None:
    site = Three()
    links: dict[str, ChainLink] = {}

    async def ask(model: str, before: JsonObject | None, **fields: object) -> JsonObject:
        named = {} if before is None else {"previous_response_id": before["id"]}
        request = parse_create({"model": model, "tools": [TOOL_F], "store": stored, **named, **fields})
        origin = Origin(transport="websocket", project="default")
        reading = Reading(site, await site.service.create(request, origin, recall=links.get))
        response: JsonObject = (await reading.to_the_end())[-1]["response"]  # type: ignore[assignment]
        assert response["status"] == "completed"
        link = reading.reader.source.link
        assert link is not None
        links.update({} if stored else {link.response_id: link})
        return response

    first, second, third = order
    called = await ask(first, None, input="What is it?")
    answers(site)
    answered = await ask(second, called, input=[output_of(called, "18 degrees")])
    text = site.text(second)
    assert text.index("What is it?") < text.index('"a": 1' if second == "fake" else '"a"') < text.index("18 degrees")
    if second == "qwen" and first == "fake":
        assert "<think>\nHm.\n</think>" in text, "thoughts of a loop that goes on are read"
    asked = await ask(third, answered, input="Sure?")
    assert f"18, says {second}." in site.text(third)
    back = await ask(first, asked, input="Really?")
    text = site.text(first)
    assert text.index("18 degrees") < text.index(f"says {second}.") < text.index(f"says {third}.")
    prompt = site.engines[first].prompts[-1]
    await ask(first, back, input="Really really?")
    said = site.engines[first].encode(f"18, says {first}.")
    assert site.engines[first].prompts[-1][: len(prompt)] == prompt, "what is said in another format stays as it is"
    assert any(
        site.engines[first].prompts[-1][at : at + len(said)] == said for at in range(len(prompt), len(prompt) * 2)
    )


@pytest.mark.parametrize("others", ["qwen", "llama"])
async def test_items_that_are_sent_again_are_read_by_another_model(others: str) -> None:
    """By their ids, by the seals of their reasoning, and as a conversation: both ways."""
    for first, second in (("fake", others), (others, "fake")):
        site = Three()
        sealed: JsonObject = {"include": ["reasoning.encrypted_content"], "tools": [TOOL_F]}
        called = await site.ask(model=first, input="What is it?", **sealed)
        answers(site)
        [call] = [item for item in called["output"] if item["type"] == "function_call"]  # type: ignore[attr-defined, index]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "18 degrees"}
        items: list[JsonObject] = [*called["output"], output]  # type: ignore[misc]
        bare = [{name: value for name, value in item.items() if name not in ("id", "content")} for item in items]
        for replayed in (items, bare):
            response = await site.ask(model=second, input=[{"role": "user", "content": "Well?"}, *replayed], **sealed)
            assert response["status"] == "completed"
            text = site.text(second)
            assert text.count('"a": 1') == 1
            assert text.index("Well?") < text.index("18 degrees")
        site.conversations.records["conv_1"] = ConversationRecord(
            id="conv_1",
            created_at=1,
            metadata={},
            title="",
            status="",
            version=1,
            head=str(called["id"]),
            head_position=0,
        )
        site.conversations.kept["conv_1"] = [ConversationEntry(position=1, item=items[-1], created_at=1)]
        await site.ask(model=second, input="And?", conversation="conv_1", tools=[TOOL_F])
        text = site.text(second)
        assert text.index("What is it?") < text.index("18 degrees") < text.index("And?")


async def test_a_compaction_is_read_by_a_model_of_another_format() -> None:
    site = Three()
    answers(site)
    first = await site.ask(model="qwen", input="old " * 1200)
    compact: JsonObject = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
    second = await site.ask(model="qwen", input="word word word", previous_response_id=first["id"], **compact)
    assert "compaction" in [item["type"] for item in second["output"]]  # type: ignore[attr-defined, index]
    await site.ask(model="fake", input=[*second["output"], {"role": "user", "content": "Go on."}])  # type: ignore[misc]
    assert "old old" not in site.text("fake")
    assert site.text("fake").index("Summary of the conversation") < site.text("fake").index("word word word")


NAMES = st.text(min_size=1, max_size=30)
KINDS = st.sampled_from(ToldKind)


@given(st.lists(st.builds(Told, KINDS, st.text(max_size=60), NAMES, st.booleans(), st.booleans()), max_size=6))
def test_what_is_told_from_one_format_to_another_keeps_its_text(messages: list[Told]) -> None:
    for model_format in FORMATS.values():
        for told in messages:
            rendered = model_format.told(told)
            again = told_of(rendered)
            assert again is not None
            [read] = again
            assert (read.kind, read.text) == (told.kind, told.text)
            if told.kind in (ToldKind.CALL, ToldKind.OUTPUT) and told.name.isalnum() and told.name.isascii():
                assert (read.name, read.hosted) == (told.name, told.hosted)


def test_what_nobody_wrote_is_not_read() -> None:
    assert told_of(RenderedMessage(MessageKind.USER, FORMATS["fake"].user("x").tokens[1:])) is None


def test_thoughts_are_dropped_where_the_format_drops_them() -> None:
    """What a chat template keeps is an analysis for gpt-oss: it goes once a user's message follows an answer."""
    qwen = FORMATS["qwen"]
    said = [qwen.user("hi"), qwen.said(ItemKind.REASONING, "Secretly."), qwen.said(ItemKind.ANSWER, "Hello.")]
    link = new_link(None, response_id="resp_1", started_on="2026-11-22", messages=said)
    later = new_link(link, response_id="resp_2", started_on="2026-11-22", messages=[qwen.user("and?")])
    made: ChainLink | None = _chain(later, _Rewrite(FORMATS["fake"], told_of))
    assert made is not None
    text = b"".join(map(FORMATS["fake"].token_bytes, made.prompt_tokens())).decode()
    assert text == (
        "<|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|end|>"
        "<|start|>user<|message|>and?<|end|>"
    )
