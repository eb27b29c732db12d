"""The real vLLM holds a model of noise to the grammar of a turn: nothing is forced, every token is sampled.

The weights are random, so a thought that has begun would never end. Where the end of a turn is of interest, the prompt
ends with the beginning of a message, and the grammar is the one behind it, as when a turn is taken over. Only this
finds a grammar that vLLM's xgrammar reads in another way than our own check.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.contents.validation import problem_of
from engine.errors import GrammarRefused
from engine.formats.base import ItemKind, ItemStarted, Text
from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from engine.formats.harmony.format import HarmonyFormat
from engine.formats.harmony.grammar import problem_of_turn
from engine.types import AnyObject, CallRule, Content, FinishReason, JsonSchema, Lark, Regex, TurnRules
from tests.kit.schemas import drawn
from tests.system.vllm.engines import EngineUnderTest, LocalEngine, request
from tests.unit.engine.grammars import APPLY_PATCH

FORMAT = HarmonyFormat()
AT_ONCE = 16
PATIENCE = 120.0  # seconds for one turn among so many
ANSWER = "<|channel|>final<|message|>"
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
CALL = "<|channel|>commentary to="
SMALL = '{"type":"object","properties":{"n":{"type":"integer","minimum":0,"maximum":99}},"required":["n"]}'
OTHER = '{"type":"object","properties":{"s":{"type":"string","maxLength":4}},"required":["s"]}'
HUNK = re.compile(r"\*\*\* (?:Add|Delete|Update) File: .")
LINE = re.compile(r"\*\*\* .+|[-+ ].*|@@(?: .+)?")  # of a patch, behind its first
TOOLS = (
    CallRule("first", JsonSchema(SMALL)),
    CallRule("ns.second-one", JsonSchema(OTHER)),
    CallRule("python", Regex(r"[a-z]{1,4}\(\)"), hosted=True),
)


class Sampled:
    """One turn: all its tokens, whether it came to its end, and the text of each message by what it is."""

    def __init__(self, rules: TurnRules, tokens: Sequence[int], *, cut: bool) -> None:
        self.cut = cut
        self.text = decode_tokens(tokens)
        assert problem_of_turn(rules, tokens, cut=cut) is None, self.text
        parser = FORMAT.parser({rule.name for rule in rules.calls})
        self.items: list[tuple[ItemKind, str | None]] = []
        self.texts: list[str] = []
        for event in [*parser.feed(tokens), *parser.close()]:
            if isinstance(event, ItemStarted):
                self.items.append((event.kind, event.name))
                self.texts.append("")
            elif isinstance(event, Text):
                self.texts[-1] += event.text
        assert cut or parser.repairs == 0, self.text

    def fits(self, content: Content) -> bool:
        """Whether the last message is what `content` asks for."""
        return problem_of(content, self.texts[-1].encode()) is None


async def turn(vllm: EngineUnderTest, rules: TurnRules, said: str = "", *, tokens: int = 300, seed: int = 0) -> Sampled:
    behind = encode_harmony(said)
    grammar = FORMAT.grammar(rules, behind)
    assert grammar is not None
    prompt = [*FORMAT.user(f"Go on, {seed}.").tokens, *FORMAT.generation_start(), *behind]
    asked = replace(request(prompt, temperature=1.0, max_output_tokens=tokens), grammar=grammar)
    async with asyncio.timeout(PATIENCE):
        chunks = [chunk async for chunk in vllm.engine.generate(asked)]
    sampled = [token for chunk in chunks for token in chunk.token_ids]
    return Sampled(rules, [*behind, *sampled], cut=chunks[-1].finish_reason is FinishReason.LENGTH)


async def turns(vllm: EngineUnderTest, asked: Sequence[tuple[TurnRules, str]], *, tokens: int = 300) -> list[Sampled]:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(seed: int, rules: TurnRules, said: str) -> Sampled:
        async with room:
            return await turn(vllm, rules, said, tokens=tokens, seed=seed)

    return await asyncio.gather(*(one(seed, *each) for seed, each in enumerate(asked)))


async def test_answers_fit_two_hundred_schemas(vllm: EngineUnderTest) -> None:
    several = drawn(200)
    contents = [JsonSchema(schema) for schema in (several if isinstance(vllm, LocalEngine) else several[::5])]
    said = await turns(vllm, [(TurnRules(answer=content), ANSWER) for content in contents])
    whole = [(turn, content) for turn, content in zip(said, contents, strict=True) if not turn.cut]
    assert [turn.text for turn, content in whole if not turn.fits(content)] == []
    assert len(whole) >= 0.6 * len(contents)


async def test_arguments_fit_their_schemas(vllm: EngineUnderTest) -> None:
    contents = [JsonSchema(schema) for schema in drawn(40)]
    rules = [TurnRules(calls=(CallRule("f", content), CallRule("g")), must_call=True) for content in contents]
    said = await turns(vllm, [(each, CALL + "functions.f") for each in rules])
    whole = [(turn, content) for turn, content in zip(said, contents, strict=True) if not turn.cut]
    assert all(turn.items[0] == (ItemKind.CALL, "f") for turn in said)
    assert [turn.text for turn, content in whole if turn.items[-1][1] == "f" and not turn.fits(content)] == []
    assert len(whole) >= 10


@pytest.mark.parametrize("begun", ["", THOUGHT, THOUGHT + " to="])
async def test_required_always_calls_and_a_named_tool_is_that_one(vllm: EngineUnderTest, begun: str) -> None:
    required, named = TurnRules(calls=TOOLS, must_call=True), TurnRules(calls=TOOLS[1:2], must_call=True)
    said = await turns(vllm, [(required, begun)] * 20 + [(named, begun)] * 20, tokens=120)
    for number, each in enumerate(said):
        assert ItemKind.ANSWER not in [kind for kind, _ in each.items]
        if not each.cut:
            assert each.items[-1][0] in (ItemKind.CALL, ItemKind.HOSTED_CALL)
            assert number < 20 or each.items[-1] == (ItemKind.CALL, "ns.second-one")
    assert sum(not each.cut for each in said) >= (25 if begun.endswith("to=") else 1)


async def test_five_hundred_free_turns_call_nothing_that_is_not_there(vllm: EngineUnderTest) -> None:
    count = 500 if isinstance(vllm, LocalEngine) else 100
    begun = ("", THOUGHT, CALL, " to=", "<|channel|>")
    said = await turns(vllm, [(TurnRules(calls=TOOLS), begun[n % len(begun)]) for n in range(count)], tokens=40)
    called = {name for each in said for kind, name in each.items if kind in (ItemKind.CALL, ItemKind.HOSTED_CALL)}
    assert called == {rule.name for rule in TOOLS}


async def test_nothing_is_called_where_calls_are_forbidden(vllm: EngineUnderTest) -> None:
    said = await turns(
        vllm, [(TurnRules(), begun) for begun in ("", THOUGHT, "<|channel|>") for _ in range(20)], tokens=20
    )
    kinds = {kind for each in said for kind, _ in each.items}
    assert kinds == {ItemKind.REASONING, ItemKind.PREAMBLE, ItemKind.ANSWER}


async def test_two_thoughts_and_a_preamble_stay_possible(vllm: EngineUnderTest) -> None:
    begun = f"{THOUGHT}{THOUGHT}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}functions.first"
    for said in await turns(vllm, [(TurnRules(calls=TOOLS, must_call=True), begun)] * 5):
        assert [kind for kind, _ in said.items[:4]] == [
            *(ItemKind.REASONING, ItemKind.REASONING, ItemKind.PREAMBLE, ItemKind.CALL)
        ]


@pytest.mark.parametrize(
    "content", [AnyObject(), Regex(r"(yes|no), [a-z]{2,5}\."), Lark('start: "a"+ ("b" | /[0-9]/)')], ids=type
)
async def test_answers_of_other_kinds(vllm: EngineUnderTest, content: Content) -> None:
    said = await turns(vllm, [(TurnRules(answer=content), ANSWER)] * 30)  # most of an object never end
    assert all(each.fits(content) for each in said if not each.cut)
    assert any(not each.cut for each in said)


async def test_a_patch_follows_its_grammar(vllm: EngineUnderTest) -> None:
    rules = TurnRules(calls=(CallRule("apply_patch", Lark(APPLY_PATCH)),), must_call=True)
    begun = f"{CALL}functions.apply_patch<|message|>"
    for said in await turns(vllm, [(rules, begun)] * 5, tokens=60):
        first, second, *lines = said.texts[0].split("\n")
        assert (first, HUNK.match(second) is not None) == ("*** Begin Patch", True), said.text
        assert [line for line in lines[:-1] if not LINE.fullmatch(line)] == []


async def test_a_grammar_is_checked_once_and_a_bad_one_is_refused(vllm: EngineUnderTest) -> None:
    grammar = FORMAT.grammar(TurnRules(calls=TOOLS))
    assert grammar is not None
    assert vllm.engine.supports_grammar
    await vllm.engine.check_grammar(grammar)
    bad = '{"type":"structural_tag","format":{"type":"regex","pattern":"("}}'
    for _ in range(2):
        with pytest.raises(GrammarRefused):
            await vllm.engine.check_grammar(replace(grammar, structural_tag=bad))


async def test_special_tokens_are_not_text(vllm: EngineUnderTest) -> None:
    """Within a JSON string `<|end|>` would be seven harmless characters, and the token an end."""
    content = JsonSchema(json.dumps({"type": "string", "pattern": r"^<\|(end|start|return|message)\|>$"}))
    for said in await turns(vllm, [(TurnRules(answer=content), ANSWER)] * 10):
        assert len(said.items) == 1
        assert not said.cut
        assert said.fits(content)
