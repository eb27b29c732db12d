"""The service with models that have chat templates: prompts of two families, and conversations across formats."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import permutations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.formats.base import ItemKind, MessageKind, ModelFormat, PlainKind, PlainMessage, RenderedMessage
from engine.formats.harmony.format import HarmonyFormat
from engine.models import plain_messages
from engine.types import ChatPrompt
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.prompt.chain import ChainLink, new_link
from responses_app.protocol.requests.requests import parse_create
from responses_app.resources.conversations.model import Conversation
from responses_app.resources.conversations.store import Conversations
from responses_app.runs.plan.history import _chain, _Rewrite
from responses_app.runs.plan.plan import Origin
from tests.kit.fakes import TOOL_F, FakeEngine, Reading, Site, Turn
from tests.kit.laws import assert_laws
from tests.kit.oracle import validate_event
from tests.kit.sqlite import conversations, sqlite_alias  # noqa: F401 - fixtures
from tests.unit.formats.families import FIRST_WORD, LLAMA, QWEN, WORDS, Family
from tests.unit.formats.rendering import Renderer, format_of
from tests.unit.runs.test_several_models import model_of

CALLS = {
    "qwen": '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>',
    "llama": '{"name": "f", "parameters": {"a": 1}}<|eot_id|>',
}


class FamilyEngine(FakeEngine):
    """Plays turns in the words of a family; each is encoded byte by byte, so never as its template encodes it."""

    def __init__(self, family: Family, renderer: Renderer, turns: tuple[Turn, ...]) -> None:
        self.renderer = renderer
        self.ends = (family.ids[family.end],)
        super().__init__(turns)

    def encode(self, said: str) -> list[int]:
        tokens: list[int] = []
        for token in self.renderer.encode(said):
            is_special = token in self.renderer.family.ids.values()
            tokens += [token] if is_special or token < FIRST_WORD else WORDS[token - FIRST_WORD].encode()
        return tokens


class FamilySite(Site):
    engine: FamilyEngine

    def __init__(self, family: Family, *turns: Turn, **traits: bool) -> None:
        self.format, self.renderer = format_of(family, **traits)
        super().__init__(FamilyEngine(family, self.renderer, turns), model_format=self.format)

    @property
    def texts(self) -> list[str]:
        return [b"".join(map(self.format.token_bytes, prompt)).decode() for prompt in self.engine.prompts]

    def assert_goes_on_behind(self, said: str) -> None:
        """Assert that the second prompt begins with the first, and with all that was sampled behind it."""
        sampled = [*self.engine.prompts[0], *self.engine.encode(said)]
        assert self.engine.prompts[1][: len(sampled)] == sampled


@pytest.fixture(params=[QWEN, LLAMA], ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    made: Family = request.param
    return made


def kinds(response: JsonObject) -> list[object]:
    return [item["type"] for item in response["output"]]  # type: ignore[index, attr-defined]


def output_of(response: JsonObject, text: str = "18") -> JsonObject:
    call = response["output"][-1]  # type: ignore[index]
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text}


async def test_a_response_is_created(family: Family) -> None:
    thought = "<think>\nHm.\n</think>\n\n" if family is QWEN else ""
    site = FamilySite(family, f"{thought}Grüße!{family.end}")
    events = await (await site.begin(input="hi", instructions="Rhyme.")).to_the_end()
    assert_laws(events)
    for event in events:
        validate_event(event)
    response = events[-1]["response"]
    assert kinds(response) == (["reasoning"] if thought else []) + ["message"]  # type: ignore[arg-type]
    assert response["output"][-1]["content"][0]["text"] == "Grüße!"  # type: ignore[index]
    assert response["usage"]["input_tokens"] == len(site.engine.prompts[0])  # type: ignore[index]
    if family is QWEN:
        assert response["output"][0]["content"][0]["text"] == "Hm."  # type: ignore[index]
        assert site.texts == [
            "<|im_start|>system\nRhyme.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        ]


async def test_a_tool_loop_goes_on_with_the_very_tokens(family: Family) -> None:
    site = FamilySite(family, CALLS[family.name], f"18.{family.end}", f"Yes.{family.end}")
    first = await site.ask(input="hi", tools=[TOOL_F])
    call = first["output"][-1]  # type: ignore[index]
    assert (call["type"], call["name"], orjson.loads(call["arguments"])) == ("function_call", "f", {"a": 1})
    second = await site.ask(input=[output_of(first)], tools=[TOOL_F], previous_response_id=first["id"])
    site.assert_goes_on_behind(CALLS[family.name])
    await site.ask(input="sure?", tools=[TOOL_F], previous_response_id=second["id"])
    assert "sure?" in site.texts[2]
    assert ("Hm." in site.texts[1], "Hm." in site.texts[2]) == (family is QWEN, False), "as the template does it"


@pytest.mark.parametrize("said", [" Hello", "\n\nHello \n", "\n\n\n  - a\n  - b\n\n", "\tHello\r\n "])
async def test_white_space_around_an_answer_is_kept(family: Family, said: str) -> None:
    """As Harmony keeps it; and its tokens are found again, though a template's line end and its own may be one."""
    site = FamilySite(family, f"{said}{family.end}", f"Yes.{family.end}")
    first = await site.ask(input="hi")
    assert first["output"][0]["content"][0]["text"] == said  # type: ignore[index]
    await site.ask(input="sure?", previous_response_id=first["id"])
    site.assert_goes_on_behind(f"{said}{family.end}")


@pytest.mark.parametrize("thought", ["", "<think>\n  Hm. \n</think>\n\n"])
@pytest.mark.parametrize("preamble", ["", " I look.\n", "I look. \n\n"])
async def test_white_space_around_tags_is_kept(thought: str, preamble: str) -> None:
    """But what the template writes itself."""
    said = f'{thought}{preamble}<tool_call>\n{{"name": "f", "arguments": {{"a": 1}}}}\n</tool_call><|im_end|>'
    site = FamilySite(QWEN, said, "18.<|im_end|>")
    first = await site.ask(input="hi", tools=[TOOL_F])
    texts = [item["content"][0]["text"] for item in first["output"] if item.get("content")]  # type: ignore[attr-defined]
    assert texts == [each for each in ("  Hm. " * bool(thought), preamble.removesuffix("\n")) if each]
    await site.ask(input=[output_of(first)], tools=[TOOL_F], previous_response_id=first["id"])
    site.assert_goes_on_behind(said)


async def test_a_client_that_replays_everything_gives_the_same_prompt(family: Family) -> None:
    site = FamilySite(family, CALLS[family.name], f"18.{family.end}")
    first = await site.ask(input="hi", tools=[TOOL_F])
    await site.ask(input=[output_of(first)], tools=[TOOL_F], previous_response_id=first["id"])
    replayed = [{"role": "user", "content": "hi"}, *first["output"], output_of(first)]  # type: ignore[misc]
    await site.ask(input=replayed, tools=[TOOL_F])
    assert site.engine.prompts[2] == site.engine.prompts[1]
    bare = [{k: v for k, v in item.items() if k not in ("id", "status")} for item in replayed]
    await site.ask(input=bare, tools=[TOOL_F])
    assert site.texts[3] == site.texts[1], "the same text, where the tokens are known no more"


async def test_parallel_calls_have_their_outputs_behind_them(family: Family) -> None:
    two = {
        "qwen": '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n' * 2,
        "llama": '{"name": "f", "parameters": {}}; {"name": "f", "parameters": {"b": 2}}',
    }[family.name].rstrip()
    site = FamilySite(family, f"{two}{family.end}", f"Done.{family.end}")
    first = await site.ask(input="hi", tools=[TOOL_F])
    calls = first["output"]
    assert kinds(first) == ["function_call"] * 2
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": f"<{place}>"}
        for place, call in enumerate(calls)  # type: ignore[arg-type, var-annotated]
    ]
    await site.ask(input=outputs, tools=[TOOL_F], previous_response_id=first["id"])
    messages = site.renderer.chats[-1].messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in messages[1]["tool_calls"]] == [each["tool_call_id"] for each in messages[2:]]
    one = FamilySite(family, f"{two}{family.end}")
    assert kinds(await one.ask(input="hi", tools=[TOOL_F], parallel_tool_calls=False)) == ["function_call"]


async def test_a_tool_that_does_not_exist_is_told(family: Family) -> None:
    site = FamilySite(family, CALLS[family.name].replace('"f"', '"nothing"'), f"Oh.{family.end}")
    response = await site.ask(input="hi", tools=[TOOL_F])
    assert kinds(response)[-1] == "message"
    assert "does not exist. Available tools: f." in site.texts[1]


async def test_a_custom_tool_takes_text_as_it_is() -> None:
    call = '<tool_call>\n{"name": "sh", "arguments": {"freeform_text": "ls\\n-l"}}\n</tool_call><|im_end|>'
    site = FamilySite(QWEN, call, "Done.<|im_end|>")
    tool: JsonObject = {"type": "custom", "name": "sh"}
    first = await site.ask(input="hi", tools=[tool])
    [called] = first["output"]  # type: ignore[misc]
    assert (called["type"], called["input"]) == ("custom_tool_call", "ls\n-l")
    output: JsonObject = {"type": "custom_tool_call_output", "call_id": called["call_id"], "output": "a b"}
    await site.ask(input=[output], tools=[tool], previous_response_id=first["id"])
    site.assert_goes_on_behind(call)


async def test_a_compaction_begins_a_new_chain(family: Family) -> None:
    site = FamilySite(family, f"Hello.{family.end}", f"They greet.{family.end}", f"Yes.{family.end}")
    first = await site.ask(input="one")
    second = await site.ask(input=[{"type": "compaction_trigger"}], previous_response_id=first["id"])
    await site.ask(input="two", previous_response_id=second["id"])
    assert "They greet." in site.texts[2]
    assert "one" not in site.texts[2].partition("two")[0].replace("conversation", "")


async def test_a_template_that_refuses_a_conversation_is_a_400(family: Family) -> None:
    site = FamilySite(family, f"Yes.{family.end}")

    def refuse(_: ChatPrompt) -> list[int]:
        from engine.errors import NotRendered

        raise NotRendered("roles must alternate, says /srv/secret")

    site.format._render = refuse
    with pytest.raises(ApiError, match="chat template") as refused:
        await site.begin(input="hi")
    assert (refused.value.status, refused.value.param) == (400, "input")
    assert "secret" not in refused.value.message


@pytest.mark.parametrize("thinks_first", [False, True])
async def test_without_effort_a_model_does_not_think_and_is_read_so(thinks_first: bool) -> None:
    site = FamilySite(QWEN, "Hello.<|im_end|>", thinks_first=thinks_first)
    quiet: JsonObject = {"reasoning": {"effort": "none"}}
    first = await site.ask(input="hi", **quiet)
    assert kinds(first) == ["message"]
    assert site.texts[0].endswith("assistant\n<think>\n\n</think>\n\n")
    second = await site.ask(input="and?", previous_response_id=first["id"])
    assert kinds(second) == (["reasoning"] if thinks_first else ["message"])
    assert site.texts[1].endswith("assistant\n")
    assert [chat.template_kwargs["reasoning_effort"] for chat in site.renderer.chats] == ["none", "medium"]


def test_an_operator_tells_a_template_more() -> None:
    made, renderer = format_of(QWEN, template_kwargs={"thinking": True, "reasoning_effort": "high", "x": 1})
    for effort in ("low", "none"):
        frame = made.at_effort(effort).frame(instructions=None, functions=(), effort=effort, date="2026-11-22")
        made.prompt_of(frame + made.user("hi").tokens)
    told = [{**chat.template_kwargs} for chat in renderer.chats]
    assert told[0] == {"date_string": "22 Nov 2026", "thinking": True, "reasoning_effort": "high", "x": 1}
    assert told[1] == {**told[0], "thinking": False, "enable_thinking": False}


async def test_sealed_items_come_back_as_the_tokens_that_were_sampled(family: Family) -> None:
    site = FamilySite(family, CALLS[family.name], f"18.{family.end}")
    asked: JsonObject = {"tools": [TOOL_F], "include": ["reasoning.encrypted_content"], "store": False}
    first = await site.ask(input="hi", **asked)
    bare = [{name: value for name, value in item.items() if name not in ("id", "status")} for item in first["output"]]  # type: ignore[attr-defined]
    call = next(item for item in bare if item["type"] == "function_call")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "18"}
    response = await site.ask(input=[{"role": "user", "content": "hi"}, *bare, output], **asked)
    assert response["status"] == "completed"
    site.assert_goes_on_behind(CALLS[family.name])


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
async def test_items_that_are_sent_again_are_read_by_another_model(
    conversations: Conversations,  # noqa: F811 - a fixture
    others: str,
) -> None:
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
        row = Conversation(pk=f"conv_{first}", created_at=datetime.now(UTC), version=1, head=str(called["id"]))
        await conversations.create(row, [{"id": "fco_1", **output}])
        await site.ask(model=second, input="And?", conversation=row.pk, tools=[TOOL_F])
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
KINDS = st.sampled_from(PlainKind)


@given(st.lists(st.builds(PlainMessage, KINDS, st.text(max_size=60), NAMES, st.booleans(), st.booleans()), max_size=6))
def test_what_is_told_from_one_format_to_another_keeps_its_text(messages: list[PlainMessage]) -> None:
    for model_format in FORMATS.values():
        for told in messages:
            rendered = model_format.render_plain(told)
            again = plain_messages(rendered)
            assert again is not None
            [read] = again
            assert (read.kind, read.text) == (told.kind, told.text)
            if told.kind in (PlainKind.CALL, PlainKind.OUTPUT) and told.name.isalnum() and told.name.isascii():
                assert (read.name, read.hosted) == (told.name, told.hosted)


def test_what_nobody_wrote_is_not_read() -> None:
    assert plain_messages(RenderedMessage(MessageKind.USER, FORMATS["fake"].user("x").tokens[1:])) is None


def test_thoughts_are_dropped_where_the_format_drops_them() -> None:
    """What a chat template keeps is an analysis for gpt-oss: it goes once a user's message follows an answer."""
    qwen = FORMATS["qwen"]
    said = [qwen.user("hi"), qwen.said(ItemKind.REASONING, "Secretly."), qwen.said(ItemKind.ANSWER, "Hello.")]
    link = new_link(None, response_id="resp_1", started_on="2026-11-22", messages=said)
    later = new_link(link, response_id="resp_2", started_on="2026-11-22", messages=[qwen.user("and?")])
    made: ChainLink | None = _chain(later, _Rewrite(FORMATS["fake"], plain_messages))
    assert made is not None
    text = b"".join(map(FORMATS["fake"].token_bytes, made.prompt_tokens())).decode()
    assert text == (
        "<|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|end|>"
        "<|start|>user<|message|>and?<|end|>"
    )
