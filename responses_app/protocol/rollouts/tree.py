"""`RolloutTree`: the generations of a roll-out as a tree of spans of tokens, and the sequences to train on.

    g0  read A B     sampled c d     n0 [A B] ── n1 [c d] ─┬─ n2 [E] ── n3 [f]      s0: n0 n1 n2 n3
    g1  read ABcdE   sampled f                             └─ n4 [X] ── n5 [y]      s1: n0 n1 n4 n5
    g2  read ABcdX   sampled y

A node is a span of tokens that are all of the prompt, or all sampled by one generation; it is split where something
else begins behind a part of it. A sequence is the path from a root to a generation that no other one continues. A
sampled token has the mask 1 in the first sequence that has it, and 0 in later ones, so nothing is trained on twice.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from engine.formats.base import Tokens, as_tokens
from engine.types import WeightsSpan
from responses_app.protocol.rollouts.generations import (
    Break,
    Generation,
    Role,
    Tops,
    add_span,
    spans_of,
)
from responses_app.protocol.rollouts.objects import (
    GenerationObject,
    NodeObject,
    Reward,
    RewardObject,
    RolloutObject,
    RolloutTreeObject,
    SequenceObject,
    WeightsObject,
)
from responses_app.protocol.rollouts.packing import as_logprobs, number, numbers

Masks = Literal["first", "all"]  # where a sampled token has the mask 1: in its first sequence, or in each


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A span of tokens."""

    id: str  # "n0"
    parent: str | None
    kind: Literal["prompt", "sampled"]
    role: Role
    token_ids: "Tokens[int]"
    begin: int  # its place in every sequence that has it
    generation: Generation
    logprobs: "array[float] | None" = None  # NaN where the engine did not tell
    tops: Tops | None = None
    weights: Sequence[WeightsSpan] = ()
    images: Sequence[tuple[int, str]] = ()  # the place in the node, and SHA-256

    @property
    def mask(self) -> Literal[0, 1]:
        """1 for what was sampled."""
        return 1 if self.kind == "sampled" else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A generation, and the nodes from the root to its end."""

    generation: Generation
    nodes: Sequence[int]  # the places of its nodes in the tree's list


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOfNodes:
    """A path to train on."""

    id: str  # "s0"
    branch: str
    nodes: Sequence[int]  # the places of its nodes in the tree's list
    token_ids: "Tokens[int]"
    mask: bytearray  # a byte a token
    logprobs: "array[float]"  # NaN for tokens of a prompt, and where the engine did not tell
    weights: Sequence[WeightsSpan]  # of its sampled tokens, in order
    parent_sequence: str | None  # an earlier one with which it begins
    shared_tokens: int  # how much of that
    response_ids: Sequence[str]  # of its generations
    reward: Reward | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakOf:
    """Where a generation did not continue a sequence."""

    generation: str
    after: str
    position: int  # of the first token that differs
    reason: Break


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTree:
    """All of a roll-out."""

    head: RolloutObject
    nodes: Sequence[Node]
    paths: Sequence[Path]  # one for each generation
    sequences: Sequence[SequenceOfNodes]
    breaks: Sequence[BreakOf]

    def as_json(self) -> RolloutTreeObject:
        """Return it as clients see it."""
        return {
            **self.head,
            "nodes": [_node(node) for node in self.nodes],
            "generations": [self._generation(path) for path in self.paths],
            "sequences": [self._sequence(sequence) for sequence in self.sequences],
            "breaks": [
                {"generation": each.generation, "after": each.after, "position": each.position, "reason": each.reason}
                for each in self.breaks
            ],
        }

    def _generation(self, path: Path) -> GenerationObject:
        generation = path.generation
        call = generation.call
        return {
            "id": f"g{generation.number}",
            "response_id": call.response_id,
            "api": call.api,
            "branch": call.branch,
            "agent": call.agent,
            "turn": call.turn,
            "prompt_tokens": generation.prompt_tokens,
            "sampled_tokens": len(call.sampled),
            "dropped_tokens": call.dropped,
            "nodes": [self.nodes[place].id for place in path.nodes],
            "finish_reason": call.finish,
            "summary": call.summary,
            "sampling": dict(call.sampling),
        }

    def _sequence(self, sequence: SequenceOfNodes) -> SequenceObject:
        return {
            "id": sequence.id,
            "branch": sequence.branch,
            "nodes": [self.nodes[place].id for place in sequence.nodes],
            "token_ids": sequence.token_ids.tolist(),
            "mask": list(sequence.mask),
            "logprobs": numbers(sequence.logprobs),
            "weights": _weights(sequence.weights),
            "parent_sequence": sequence.parent_sequence,
            "shared_tokens": sequence.shared_tokens,
            "reward": sequence.reward,
        }


def tree_of(head: RolloutObject, generations: Sequence[Generation], *, masks: Masks = "first") -> RolloutTree:
    """Return the tree of a roll-out; `generations` are all that it has, in order."""
    making = _Making(generations)
    sequences = _sequences(making, head["rewards"], masks)
    breaks = [
        BreakOf(generation=f"g{each.number}", after=f"g{each.near}", position=each.shared, reason=each.cut)
        for each in generations
        if each.cut and each.near is not None
    ]
    return RolloutTree(head=head, nodes=making.nodes, paths=making.paths, sequences=sequences, breaks=breaks)


class _Making:
    """Makes the nodes of a tree."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self.nodes: list[Node] = []
        self.paths: list[Path] = []
        self._by_number = {each.number: each for each in generations}
        self._path_of: dict[int, Path] = {}
        self.continued: set[int] = set()  # the numbers of generations whose whole another one begins with
        self._cuts: dict[int, set[int]] = {}  # by the numbers of generations: where others leave them
        for each in generations:
            self._note_parent(each)
        for each in generations:
            self._add(each)

    def _note_parent(self, generation: Generation) -> None:
        parent = self._owner(generation)
        if parent is not None:
            self._cuts.setdefault(parent.number, set()).add(generation.shared)
            if generation.shared == parent.whole:
                self.continued.add(parent.number)

    def _owner(self, generation: Generation) -> Generation | None:
        """Return the generation that has the last token which another one shares with it."""
        number = generation.parent
        while number is not None and generation.shared:
            parent = self._by_number[number]
            if generation.shared > parent.shared:
                return parent
            number = parent.parent
        return None

    def _add(self, generation: Generation) -> None:
        owner = self._owner(generation)
        before = [] if owner is None else self._nodes_before(self._path_of[owner.number], generation.shared)
        own: list[int] = []
        own_cuts = self._cuts.get(generation.number, set())
        places = sorted({generation.shared, generation.prompt_tokens, generation.whole, *own_cuts})
        for begin, end in pairwise(places):
            parent = own[-1] if own else (before[-1] if before else None)
            self.nodes.append(self._node(generation, begin, end, None if parent is None else self.nodes[parent].id))
            own.append(len(self.nodes) - 1)
        path = Path(generation=generation, nodes=[*before, *own])
        self.paths.append(path)
        self._path_of[generation.number] = path

    def _nodes_before(self, path: Path, position: int) -> list[int]:
        return [place for place in path.nodes if self.nodes[place].begin < position]

    def _node(self, generation: Generation, begin: int, end: int, parent: str | None) -> Node:
        name, call, prompt = f"n{len(self.nodes)}", generation.call, generation.prompt_tokens
        if end <= prompt:
            return Node(
                id=name,
                parent=parent,
                kind="prompt",
                role="prompt",
                token_ids=generation.tail[begin - generation.shared : end - generation.shared],
                begin=begin,
                generation=generation,
                images=[(at - begin, digest) for at, digest in call.images if begin <= at < end],
            )
        first, last = begin - prompt, end - prompt
        return Node(
            id=name,
            parent=parent,
            kind="sampled",
            role="assistant",
            token_ids=call.sampled[first:last],
            begin=begin,
            generation=generation,
            logprobs=None if call.logprobs is None else call.logprobs[first:last],
            tops=None if call.tops is None else call.tops[first:last],
            weights=spans_of(call.weights, first, last),
        )


def _sequences(making: _Making, rewards: Sequence[RewardObject], masks: Masks) -> list[SequenceOfNodes]:
    sequences: list[SequenceOfNodes] = []
    first: dict[int, str] = {}  # by the place of a node, the first sequence that has it
    for path in making.paths:
        if path.generation.number not in making.continued:
            name = f"s{len(sequences)}"
            sequences.append(_sequence(making.nodes, path, name, first, rewards, masks))
            for place in path.nodes:
                first.setdefault(place, name)
    return sequences


def _sequence(
    nodes: Sequence[Node],
    path: Path,
    name: str,
    first: Mapping[int, str],
    rewards: Sequence[RewardObject],
    masks: Masks,
) -> SequenceOfNodes:
    tokens, mask, logprobs, weights = as_tokens(), bytearray(), as_logprobs(), list[WeightsSpan]()
    parent, shared = None, 0
    for place in path.nodes:
        node = nodes[place]
        count = len(node.token_ids)
        if place in first:
            parent, shared = first[place], shared + count
        tokens.extend(node.token_ids)
        mask += bytes((int(node.mask and (masks == "all" or place not in first)),)) * count
        logprobs.extend(as_logprobs([math.nan]) * count if node.logprobs is None else node.logprobs)
        for span in node.weights:
            add_span(weights, span)
    ids = list(dict.fromkeys(nodes[place].generation.call.response_id for place in path.nodes))
    return SequenceOfNodes(
        id=name,
        branch=path.generation.call.branch,
        nodes=path.nodes,
        token_ids=tokens,
        mask=mask,
        logprobs=logprobs,
        weights=weights,
        parent_sequence=parent,
        shared_tokens=shared,
        response_ids=ids,
        reward=reward_of(rewards, ids),
    )


def reward_of(rewards: Sequence[RewardObject], response_ids: Sequence[str]) -> Reward | None:
    """Return the last reward of a sequence: of the whole roll-out, or of one of its responses."""
    own = [each["reward"] for each in rewards if each["turn"] is None or each["turn"] in response_ids]
    return own[-1] if own else None


def _node(node: Node) -> NodeObject:
    call, sampled = node.generation.call, node.kind == "sampled"
    times = call.times
    last = sampled and node.begin + len(node.token_ids) == node.generation.whole
    return {
        "id": node.id,
        "parent": node.parent,
        "kind": node.kind,
        "role": node.role,
        "token_ids": node.token_ids.tolist(),
        "mask": node.mask,
        "logprobs": None if node.logprobs is None else numbers(node.logprobs),
        "top_logprobs": None if node.tops is None else [_tops(each) for each in node.tops],
        "response_id": call.response_id,
        "generation": f"g{node.generation.number}",
        "branch": call.branch,
        "agent": call.agent,
        "finish_reason": call.finish if last else None,
        "times": {
            "queued": times.queued,
            "asked": times.asked,
            "first_token": times.first_token,
            "ended": times.ended,
        }
        if sampled
        else None,
        "weights": _weights(node.weights),
        "images": [{"at": at, "sha256": digest} for at, digest in node.images],
        "routed_experts": call.experts if sampled else None,
    }


def _tops(entries: Sequence[tuple[int, float]]) -> list[tuple[int, float | None]]:
    return [(token, number(value)) for token, value in entries]


def _weights(spans: Sequence[WeightsSpan]) -> list[WeightsObject]:
    return [{"version": span.version, "tokens": span.tokens} for span in spans]
