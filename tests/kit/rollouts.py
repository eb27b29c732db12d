"""What tests of roll-outs share: the trees of a server, compared with what its engine has written down."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import httpx

from tests.kit.engine_relay import Generated
from tests.kit.scripts import Entry, journal
from tests.kit.server import Server

LOGPROB = -0.25  # of every token that the scripted engine samples
_TURN = re.compile(r"(?P<id>[a-z]+[_-]\w+?)(?:\.\d+)?(?:-a(?P<agent>\d+))?-(?P<turn>\d+)(?:\.\d+)?")


async def tree_of(http: httpx.AsyncClient, name: str) -> Any:
    """Return a roll-out with its tree."""
    answer = await http.get(f"/rollouts/{name}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def path_tokens(tree: Any, nodes: list[str]) -> list[int]:
    by_id = {node["id"]: node for node in tree["nodes"]}
    return [token for name in nodes for token in by_id[name]["token_ids"]]


def of_engine(servers: list[Server], response_ids: set[str]) -> dict[tuple[str, str], list[Entry]]:
    """Return what the engine got and gave for responses, by response and turn; several where a turn was cut."""
    found: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for server in servers:
        for entry in journal(server):
            match = _TURN.fullmatch(entry["request_id"])
            assert match is not None, entry["request_id"]
            if match["id"] in response_ids or entry["request_id"] in response_ids:
                whole = match["id"] if match["id"] in response_ids else entry["request_id"]
                found[whole, f"{match['agent'] or 0}-{match['turn']}"].append(entry)
    return found


def assert_tree_is_the_engines(tree: Any, *servers: Server) -> None:
    """Check that a tree has what the engine got and gave, token by token, with all laws of trees."""
    turns = of_engine(list(servers), {each["response_id"] for each in tree["generations"]})
    had = [entries for entries in turns.values() if any(entry["sampled_tokens"] for entry in entries)]
    assert len(tree["generations"]) == len(had)
    wholes = []
    for entries in had:
        entries.sort(key=lambda entry: len(entry["prompt_tokens"]))
        # What was sampled before a cut stands in the prompt of what goes on.
        wholes.append([*entries[-1]["prompt_tokens"], *entries[-1]["sampled_tokens"]])
    for each in tree["generations"]:
        tokens = path_tokens(tree, each["nodes"])
        assert any(
            tokens == (whole[: -each["dropped_tokens"]] if each["dropped_tokens"] else whole) for whole in wholes
        ), each
        prompts = [entry["prompt_tokens"] for entries in had for entry in entries]
        assert tokens[: each["prompt_tokens"]] in prompts, each
    assert_laws_of_trees(tree)


def assert_tree_is_relayed(tree: Any, generations: Sequence[Generated]) -> None:
    """Check that a tree has what went through an `EngineRelay`, to the bit, with all laws of trees."""
    assert_laws_of_trees(tree, logprob=None)
    recorded = [_of_tree(tree, each) for each in tree["generations"]]
    # A server tries what it has not seen, such as a grammar, with a token that nobody reads.
    had = [_relayed(each, recorded) for each in generations if each.logprobs]
    assert len(recorded) == len(had)
    for each in recorded:
        assert each in had


_Compared = tuple[list[int], list[int], list[float], bool]  # prompt, sampled tokens, log probabilities, with a grammar


def _of_tree(tree: Any, generation: Any) -> _Compared:
    nodes = [node for node in tree["nodes"] if node["id"] in generation["nodes"]]
    tokens, begin = path_tokens(tree, generation["nodes"]), generation["prompt_tokens"]
    own = [node for node in nodes if node["generation"] == generation["id"] and node["mask"]]
    logprobs = [logprob for node in own for logprob in node["logprobs"]]
    return tokens[:begin], tokens[begin:], logprobs, generation["grammar"]


def _relayed(generated: Generated, recorded: list[_Compared]) -> _Compared:
    """Return what the engine had, as far as the turn went: a turn that calls a tool may end before the engine does."""
    prompt = list(generated.prompt)
    read = next((len(sampled) for begin, sampled, *_ in recorded if begin == prompt), len(generated.sampled))
    return prompt, generated.sampled[:read], generated.logprobs[:read], generated.grammar


def assert_laws_of_trees(tree: Any, *, logprob: float | None = LOGPROB) -> None:
    """Check what holds for any tree; `logprob` is that of every sampled token, None for any."""
    sampled = sum(each["sampled_tokens"] for each in tree["generations"])
    assert tree["usage"]["sampled_tokens"] == sampled
    assert tree["usage"]["generations"] == len(tree["generations"])
    assert sum(node["mask"] * len(node["token_ids"]) for node in tree["nodes"]) == sampled
    assert sum(sum(sequence["mask"]) for sequence in tree["sequences"]) == sampled
    for node in tree["nodes"]:
        if node["mask"]:
            assert len(node["logprobs"]) == len(node["token_ids"])
            assert logprob is None or set(node["logprobs"]) == {logprob}
            assert sum(span["tokens"] for span in node["weights"]) == len(node["token_ids"])
        else:
            assert node["logprobs"] is None
    for sequence in tree["sequences"]:
        assert sequence["token_ids"] == path_tokens(tree, sequence["nodes"])
    assert could_have_been_one(tree) == 0, tree["breaks"]


def could_have_been_one(tree: Any) -> int:
    """Return how often a sequence ended that could have gone on: the client changed nothing, and the tokens differ."""
    return sum(each["reason"] == "template" for each in tree["breaks"])
