"""The grammar of a Harmony turn, by its checker: what follows it, what breaks it, and what is left behind tokens."""

import json

import pytest

from engine.backends.base import BaseEngine
from engine.backends.demo.engine import DemoEngine
from engine.backends.demo.replies import reply_tokens
from engine.backends.scripted import ScriptedEngine
from engine.contents.validation import problem_of
from engine.errors import GenerationFailed, GrammarRefused
from engine.formats.base import FunctionTool
from engine.formats.harmony.encoding import START, decode_tokens, encode_harmony, encode_text
from engine.formats.harmony.format import HarmonyFormat
from engine.formats.harmony.grammar import problem_of_turn
from engine.types import (
    AnyObject,
    AnyText,
    CallRule,
    Content,
    GenerationRequest,
    JsonSchema,
    Lark,
    Regex,
    TurnGrammar,
    TurnRules,
)
from tests.contracts.engine import collect, joined
from tests.unit.engine.grammars import APPLY_PATCH
from tests.unit.engine.prompts import called, declare, prompt

FORMAT = HarmonyFormat()
WEATHER = (
    '{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":3}},'
    '"required":["city","days"],"additionalProperties":false}'
)
TOOLS = (CallRule("weather", JsonSchema(WEATHER)), CallRule("ns.free"), CallRule("python", hosted=True))
AUTO, REQUIRED = TurnRules(calls=TOOLS), TurnRules(calls=TOOLS, must_call=True)
FORBIDDEN, OBJECT = TurnRules(), TurnRules(answer=AnyObject())
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
CALL = '<|message|>{"city":"Paris","days":3}<|call|>'
ANSWER = "<|channel|>final<|message|>Hi<|return|>"

FOLLOWS = [
    (AUTO, ANSWER),
    (AUTO, THOUGHT + THOUGHT + PREAMBLE + THOUGHT + ANSWER),
    (AUTO, f"{THOUGHT} to=functions.weather<|channel|>commentary <|constrain|>json{CALL}"),
    (AUTO, f"{THOUGHT}<|channel|>commentary to=functions.weather <|constrain|>json{CALL}"),
    (AUTO, f"<|channel|>commentary to=functions.weather<|constrain|>json{CALL}"),
    (AUTO, f" to=functions.weather<|channel|>commentary json{CALL}"),
    (AUTO, f"<|channel|>analysis to=functions.weather{CALL}"),
    (AUTO, "<|channel|>analysis to=python code<|message|>1 + 1<|call|>"),
    (AUTO, "<|channel|>commentary to=functions.ns.free<|message|>not JSON<|call|>"),
    (AUTO, "<|channel|>commentary to=functions.ns.free<|message|>x<|end|><|start|>assistant" + ANSWER),
    (AUTO, f"<|channel|>commentary to=functions.weather{CALL}".replace("<|call|>", "<|return|>")),
    (REQUIRED, f"{PREAMBLE}<|channel|>commentary to=functions.weather{CALL}"),
    (FORBIDDEN, THOUGHT + ANSWER),
    (OBJECT, '<|channel|>final <|constrain|>json<|message|>{"a":1}<|return|>'),
    (OBJECT, "<|channel|>final<|message|>{}<|return|>"),
]
BREAKS = [
    (AUTO, "<|channel|>commentary to=functions.nothing<|message|>{}<|call|>", "cannot follow"),
    (AUTO, "<|channel|>commentary to=weather<|message|>{}<|call|>", "cannot follow"),
    (AUTO, "<|channel|>commentary to=functions.weather<|message|>{}<|call|>", "does not fit its schema"),
    (AUTO, "<|channel|>commentary to=functions.weather<|message|>{<|call|>", "is not JSON"),
    (AUTO, "<|channel|>final to=functions.weather<|message|>{}<|call|>", "cannot follow"),
    (AUTO, "<|channel|>analysis<|message|>Hm.<|return|>", "ends too early"),
    (AUTO, "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>x<|return|>", "cannot follow"),
    (AUTO, "<|channel|>elsewhere<|message|>Hm.<|return|>", "cannot follow"),
    (AUTO, "Hi<|return|>", "cannot follow"),
    (AUTO, ANSWER.replace("<|return|>", "<|end|>"), "cannot follow"),
    (AUTO, ANSWER + ANSWER, "cannot follow"),
    (AUTO, "", "ends too early"),
    (REQUIRED, ANSWER, "cannot follow"),
    (FORBIDDEN, "<|channel|>commentary to=functions.weather" + CALL, "cannot follow"),
    (OBJECT, "<|channel|>final<|message|>[]<|return|>", "does not fit its schema"),
]


@pytest.mark.parametrize(("rules", "said"), FOLLOWS)
def test_what_follows_the_grammar(rules: TurnRules, said: str) -> None:
    tokens = encode_harmony(said)
    assert problem_of_turn(rules, tokens) is None
    for end in range(len(tokens)):  # and so does its every beginning, behind which there is a grammar
        assert problem_of_turn(rules, tokens[:end], cut=True) is None
        assert FORMAT.grammar(rules, tokens[:end]) is not None


@pytest.mark.parametrize(("rules", "said", "problem"), BREAKS)
def test_what_breaks_the_grammar(rules: TurnRules, said: str, problem: str) -> None:
    assert problem in (problem_of_turn(rules, encode_harmony(said)) or "")


def test_special_tokens_as_text_are_text() -> None:
    header = encode_harmony("<|channel|>final<|message|>")
    assert problem_of_turn(AUTO, [*header, *encode_text("<|start|>system<|message|>"), 200002]) is None
    assert problem_of_turn(AUTO, [*header, START, 200002]) is not None


@pytest.mark.parametrize(
    ("behind", "first"),
    [
        ("<|channel|>commentary to=functions.wea", {"type": "const_string", "value": "ther"}),
        ("<|channel|>analysis<|message|>Hm.<|end|>", {"type": "token", "token": START}),
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>ass", {"type": "const_string", "value": "istant"}),
    ],
)
def test_a_turn_goes_on_behind_what_was_sampled(behind: str, first: object) -> None:
    grammar = FORMAT.grammar(AUTO, encode_harmony(behind))
    assert grammar is not None
    _never, shape, *_ = json.loads(grammar.structural_tag)["format"]["elements"]
    while shape["type"] != "sequence":
        shape = shape["elements"][0]
    assert shape["elements"][0] == first


def test_there_is_no_grammar_behind_what_breaks_it() -> None:
    assert FORMAT.grammar(AUTO, encode_harmony("<|channel|>commentary to=functions.nothing")) is None


def test_a_large_grammar_is_made_as_a_small_one_is() -> None:
    large = TurnRules(calls=(CallRule("f", JsonSchema(json.dumps({"description": "x" * 100_000}))),))
    made = FORMAT.grammar(
        TurnRules(calls=(*large.calls, CallRule("g", JsonSchema(json.dumps({"title": "y" * 100_000})))))
    )
    assert made is not None
    assert "functions.g" in made.structural_tag
    with pytest.raises(GrammarRefused):
        FORMAT.grammar(TurnRules(answer=Lark("start: nothing")))


async def said_by(engine: BaseEngine, grammar: TurnGrammar | None, text: str) -> list[int]:
    prompt = [*FORMAT.user(text).tokens, *FORMAT.generation_start()]
    return joined(await collect(engine, GenerationRequest(request_id="1", prompt_token_ids=prompt, grammar=grammar)))


class TestScripted:
    """A script says only what a model could have said."""

    async def play(self, said: str, rules: TurnRules | None, **entry: object) -> str:
        engine = ScriptedEngine(model="scripted", options={"script": [{"say": said, **entry}]})
        await engine.start()
        grammar = None if rules is None else FORMAT.grammar(rules)
        return decode_tokens(await said_by(engine, grammar, "Hi"))

    async def test_a_script_that_follows_is_played(self) -> None:
        assert await self.play(THOUGHT + ANSWER, AUTO) == THOUGHT + ANSWER
        assert await self.play("<|channel|>analysis<|message|>Hm", REQUIRED, finish="length")

    async def test_a_script_that_breaks_the_grammar_is_refused(self, caplog: pytest.LogCaptureFixture) -> None:
        with pytest.raises(GenerationFailed, match="breaks the grammar"):
            await self.play(ANSWER, REQUIRED)
        assert "breaks the grammar" in caplog.text
        assert await self.play("no Harmony<|return|>", None)


class TestDemo:
    CONTENTS = (JsonSchema(WEATHER), AnyObject(), Regex("[a-c]{3}x?"), Lark(APPLY_PATCH))

    async def ask(self, rules: TurnRules, text: str) -> list[int]:
        engine = DemoEngine(model="demo")
        await engine.start()
        grammar = FORMAT.grammar(rules)
        assert grammar is not None
        await engine.check_grammar(grammar)
        return await said_by(engine, grammar, text)

    @pytest.mark.parametrize("content", CONTENTS, ids=type)
    @pytest.mark.parametrize("text", ["Hi", 'What is "Paris" at 7?', "repeat: {}", "count to 5", ""])
    async def test_makes_forced_calls_and_answers_of_every_kind(self, content: Content, text: str) -> None:
        for rules in (TurnRules(calls=(CallRule("f", content),), must_call=True), TurnRules(answer=content)):
            assert problem_of_turn(rules, await self.ask(rules, text)) is None

    async def test_takes_what_the_user_offers(self) -> None:
        rules = TurnRules(calls=TOOLS[:1], must_call=True)
        assert '{"city":"Paris","days":7}' in decode_tokens(await self.ask(rules, 'What is "Paris" at 7?'))

    def test_arguments_that_nothing_holds_are_made_of_the_declaration(self) -> None:
        rules = TurnRules(calls=(CallRule("forecast", AnyText()), CallRule("note", AnyText())), must_call=True)
        weather = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        declared = declare(forecast=weather, note=None)
        first = decode_tokens(reply_tokens(prompt('What about "Rome"?', before=declared), rules))
        assert 'to=functions.forecast <|constrain|>json<|message|>{"city": "Rome"}<|call|>' in first
        # What was called is not called again before everything else was: who forces every call comes to an end.
        after = called("forecast", "rain")
        second = decode_tokens(reply_tokens(prompt('What about "Rome"?', before=declared, after=after), rules))
        assert "to=functions.note <|constrain|>json<|message|>{}<|call|>" in second

    def test_a_custom_tool_is_given_a_text(self) -> None:
        tool = FunctionTool("note", "Note it.", "", freeform=True)
        declared = list(FORMAT.frame(instructions=None, functions=[tool], effort="low", date="2026-01-01"))
        rules = TurnRules(calls=(CallRule("note", AnyText()),), must_call=True)
        told = decode_tokens(reply_tokens(prompt('Write "Rome"', before=declared), rules))
        assert told.endswith("<|message|>Rome<|call|>")

    async def test_what_it_cannot_make_is_refused(self) -> None:
        engine = DemoEngine(model="demo")
        with pytest.raises(GrammarRefused):
            await engine.check_grammar(TurnGrammar(TurnRules(answer=Regex("(?=b)a")), "{}"))


@pytest.mark.parametrize(
    ("content", "text", "fits"),
    [
        (Regex("a|b"), "a", True),
        (Regex("a|b"), "ab", False),
        (Regex("(a+)+$"), "a" * 40 + "b", False),
        (Lark('start: "a"+'), "aa", True),
        (Lark('start: "a"+'), "ab", False),
        (AnyObject(), '{"a":[1]}', True),
        (AnyObject(), "1", False),
        (JsonSchema('{"type":"integer"}'), "1", True),
    ],
)
def test_contents(content: Content, text: str, fits: bool) -> None:
    assert (problem_of(content, text.encode()) is None) is fits
