"""How a recorder puts together what came of one call of the engine."""

import orjson

from engine.types import SamplingOptions, TokenChunk, WeightsSpan
from responses_app.protocol.rollouts.recording import SampledTokens, as_asked


def told(*chunks: tuple[list[int], str | None]) -> SampledTokens:
    """Return what an engine told, with the versions of its weights."""
    sampled = SampledTokens()
    for tokens, version in chunks:
        sampled.add(TokenChunk(token_ids=tokens, weights_version=version))
    sampled.gather()
    return sampled


def test_a_version_holds_until_another_one_is_told() -> None:
    sampled = told(([1, 2], "a"), ([3], None), ([4], "b"))
    assert sampled.shown(4)[3] == [WeightsSpan("a", 3), WeightsSpan("b", 1)]
    assert sampled.shown(2)[3] == [WeightsSpan("a", 2)]


def test_what_the_engine_tells_at_the_end_holds_for_all_its_tokens() -> None:
    sampled = told(([1, 2, 3], "a"), ([4, 5], "b"))
    # The second version was known only when the fourth token came; it had sampled the second one already.
    sampled.weights = [WeightsSpan("a", 1), WeightsSpan("b", 4)]
    assert sampled.shown(5)[3] == [WeightsSpan("a", 1), WeightsSpan("b", 4)]
    assert sampled.shown(1)[3] == [WeightsSpan("a", 1)]


def test_what_was_sampled_before_a_cut_keeps_its_version() -> None:
    sampled = told(([1, 2], "a"), ([3, 4], "a"))
    sampled.weights = [WeightsSpan("b", 2)]  # of the call that went on behind the cut
    assert sampled.shown(4)[3] == [WeightsSpan("a", 2), WeightsSpan("b", 2)]


def test_what_was_asked_of_sampling_can_be_kept_as_json() -> None:
    asked = as_asked(SamplingOptions(temperature=0.5, seed=-(2**63), logit_bias={"7": -100.0, str(1 << 25): 2.5}))
    kept = {"temperature": 0.5, "seed": -(2**63), "logit_bias": {"7": -100.0, "33554432": 2.5}}
    assert orjson.loads(orjson.dumps(asked)) == asked == kept
