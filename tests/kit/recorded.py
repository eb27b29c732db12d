"""Roll-outs for tests: calls of an engine, by hand or by chance, at their places."""

import random
from collections.abc import Sequence
from typing import Any

from engine.formats.base import as_tokens
from engine.types import WeightsSpan
from responses_app.protocol.rollouts.generations import EngineCall, Generation, Recorded, Times, as_logprobs
from responses_app.protocol.rollouts.placing import PrefixTree
from responses_app.protocol.rollouts.requests import RewardObject, RolloutObject
from responses_app.protocol.rollouts.tree import RolloutTree, tree_of


def head(name: str = "task-1", *, rewards: Sequence[RewardObject] = (), **fields: Any) -> RolloutObject:
    """Return a roll-out without its tree."""
    usage = {"generations": 0, "prompt_tokens": 0, "sampled_tokens": 0, "bytes": 0}
    return {  # type: ignore[typeddict-item]
        "id": name,
        "object": "rollout",
        "created_at": 1_700_000_000,
        "ended_at": None,
        "status": "open",
        "group": None,
        "metadata": {},
        "model": "tiny",
        "sampling": {},
        "weights_wanted": None,
        "max_staleness": None,
        "versions": ["1"],
        "staleness": 0,
        "stale": None,
        "rewards": list(rewards),
        "usage": usage,
        **fields,
    }


def recorded(prompt: Sequence[int], sampled: Sequence[int], **fields: Any) -> Recorded:
    """Return a call of the engine; what `fields` do not say follows from the tokens."""
    made = {
        "response_id": f"resp_{len(prompt)}",
        "logprobs": as_logprobs([-token / 8 for token in sampled]),
        "weights": [WeightsSpan("1", len(sampled))] if sampled else [],
        "finish": "stop",
        "times": Times(asked=1_700_000_000_000 + len(prompt), ended=1_700_000_001_000 + len(prompt)),
        **fields,
    }
    return Recorded(EngineCall(sampled=as_tokens(sampled), **made), as_tokens(prompt))


def placed(calls: Sequence[Recorded]) -> list[Generation]:
    heads, found = PrefixTree(), list[Generation]()
    for number, each in enumerate(calls):
        parent, shared, cut, near = heads.place(each)
        generation = Generation(
            number=number, call=each.call, parent=parent, shared=shared, cut=cut, near=near, tail=each.prompt[shared:]
        )
        heads.add(generation)
        found.append(generation)
    return found


def tree(calls: Sequence[Recorded], of: RolloutObject | None = None) -> RolloutTree:
    """Return the tree of a roll-out."""
    return tree_of(of or head(), placed(calls))


def by_chance(seed: int, turns: int = 12) -> list[Recorded]:
    """Return calls as agents make them: most go on, some are forks, some begin again, some are sub-agents'."""
    chance, calls = random.Random(seed), list[Recorded]()
    for turn in range(turns):
        before = chance.choice(calls[-3:]) if calls else None
        whole = [] if before is None else [*before.prompt, *before.call.sampled]
        if chance.random() < 0.2:
            whole = whole[: chance.randrange(len(whole) + 1)]
        prompt = [*whole, *(chance.randrange(1 << 18) for _ in range(chance.randrange(1, 6)))]
        sampled = [chance.randrange(1 << 18) for _ in range(chance.randrange(1, 8))]
        half = chance.randrange(len(sampled) + 1)
        spans = [WeightsSpan(str(turn // 4), half), WeightsSpan(str(turn // 4 + 1), len(sampled) - half)]
        calls.append(
            recorded(
                prompt,
                sampled,
                response_id=f"resp_{seed}_{turn}",
                logprobs=as_logprobs([-chance.random() * 9 for _ in sampled]),
                weights=[span for span in spans if span.tokens],
                branch=chance.choice(("main", "main", "main", "helper")),
                summary=chance.random() < 0.1,
                times=Times(asked=1_700_000_000_000 + turn, ended=1_700_000_000_500 + turn),
            )
        )
    return calls
