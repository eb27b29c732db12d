"""The masks that xgrammar makes of our grammars are right while one cache serves them all, as in a vLLM.

Only this finds a mask that xgrammar takes from its cache and that is another grammar's.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from engine.backends.vllm.replica import ONE_TOKEN
from engine.backends.vocabulary_folder import write_vocabulary
from engine.formats.harmony.encoding import STOP_TOKENS, encode_harmony
from engine.formats.harmony.grammar import problem_of_turn, turn_grammar
from engine.types import CallRule, JsonSchema, TurnRules
from tests.kit.schemas import drawn
from tests.system.vllm.test_grammar import ANSWER, CALL, THOUGHT, TOOLS

VOCABULARY = 201088  # gpt-oss'
CACHE_BYTES = 512 * 1024 * 1024  # vLLM's default
STEPS = 40
WALKS = 2  # for each grammar


def asked() -> Iterator[tuple[TurnRules, str]]:
    """Yield rules, and the beginning of the turn that is there already."""
    for begun in ("", THOUGHT, CALL, " to=", "<|channel|>"):
        for must_call in (False, True):
            yield TurnRules(calls=TOOLS, must_call=must_call), begun
            yield TurnRules(calls=TOOLS[:1], must_call=must_call), begun
    for schema in drawn(10):
        yield TurnRules(answer=JsonSchema(schema)), ANSWER.removesuffix("<|message|>")
        yield TurnRules(calls=(CallRule("f", JsonSchema(schema)), CallRule("g")), must_call=True), CALL
    for begun in ("", THOUGHT, "<|channel|>"):
        yield TurnRules(), begun


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> object:
    """xgrammar's compiler as vLLM makes it."""
    import xgrammar
    from transformers import AutoTokenizer

    folder: Path = tmp_path_factory.mktemp("vocabulary")
    write_vocabulary(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=VOCABULARY)
    return xgrammar.GrammarCompiler(info, max_threads=2, cache_enabled=True, cache_limit_bytes=CACHE_BYTES)


@pytest.mark.parametrize("seed", [0, 1])
def test_every_token_that_a_mask_allows_fits(compiler: object, seed: int) -> None:
    compiler.clear_cache()  # type: ignore[attr-defined]
    compiler.compile_structural_tag(ONE_TOKEN)  # type: ignore[attr-defined]  # what every server is asked first
    chance = random.Random(seed)
    several = list(asked())
    chance.shuffle(several)
    wrong = []
    for rules, begun in several:
        behind = encode_harmony(begun)
        grammar = turn_grammar(rules, tuple(behind))
        assert grammar is not None
        compiled = compiler.compile_structural_tag(grammar.structural_tag)  # type: ignore[attr-defined]
        for _ in range(WALKS):
            said = [*behind, *walk(compiled, chance)]
            wrong.append(problem_of_turn(rules, said, cut=said[-1] not in STOP_TOKENS))
    assert [each for each in wrong if each is not None] == []


def walk(compiled: object, chance: random.Random) -> Sequence[int]:
    """Return tokens, each of which the mask allows; the last one may be refused."""
    import numpy
    import xgrammar

    matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=list(STOP_TOKENS))
    mask = xgrammar.allocate_token_bitmask(1, VOCABULARY)
    said: list[int] = []
    while len(said) < STEPS and not matcher.is_terminated():
        matcher.fill_next_token_bitmask(mask)
        bits = numpy.unpackbits(mask.numpy().view(numpy.uint8), bitorder="little")
        said.append(int(chance.choice(numpy.flatnonzero(bits))))
        if not matcher.accept_token(said[-1]):
            break
    return said
