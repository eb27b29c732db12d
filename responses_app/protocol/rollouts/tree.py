"""`RolloutTree`: the generations of a roll-out as a tree of spans of tokens, and the sequences to train on.

    g0  read A B     sampled c d     n0 [A B] ── n1 [c d] ─┬─ n2 [E] ── n3 [f]      s0: n0 n1 n2 n3
    g1  read ABcdE   sampled f                             └─ n4 [X] ── n5 [y]      s1: n0 n1 n4 n5
    g2  read ABcdX   sampled y

A node is a span of tokens that are all of one message of the prompt, or all sampled by one generation; it is split
where something else begins behind a part of it. Where messages begin is read from the tokens. A sequence is the path
from a root to a generation that no other one continues. A sampled token has the mask 1 in the first sequence that has
it, and 0 in later ones, so nothing is trained on twice.
"""

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice, pairwise, takewhile
from typing import Literal

from engine.formats.base import HEADER, Begins, ModelFormat, Role, Tokens, as_tokens
from engine.types import WeightsSpan
from responses_app.protocol.rollouts.generations import (
    Generation,
    Tops,
    add_span,
    as_logprobs,
    number,
    numbers,
    spans_of,
)
from responses_app.protocol.rollouts.requests import (
    Break,
    GenerationObject,
    NodeObject,
    Reward,
    RewardObject,
    RolloutObject,
    RolloutTreeObject,
    SequenceObject,
    WeightsObject,
)

MAX_NUMBERS = 8_000_000  # in the JSON of one tree: some 600 MB of memory while it is made, at most
FormatOf = Callable[[str], ModelFormat | None]  # the format of a model with this vocabulary, if it is known
Masks = Literal["first", "all"]  # where a sampled token has the mask 1: in its first sequence, or in each


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenNode:
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
    images: Sequence[tuple[int, str]] = ()  # the place in the node, and the digest

    @property
    def mask(self) -> Literal[0, 1]:
        """1 for sampled tokens, else 0."""
        return 1 if self.kind == "sampled" else 0

    @property
    def ends_answer(self) -> bool:
        """Whether it has the last token that its generation sampled."""
        return self.kind == "sampled" and self.begin + len(self.token_ids) == self.generation.whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A generation, and the nodes from the root to its end."""

    generation: Generation
    # With whose nodes it begins; None where it begins a root. Thousands may stand one before the other.
    before: "Path | None" = field(repr=False, compare=False)
    kept: int  # how many of the own nodes of that one
    own: Sequence[int]  # its own nodes, by their places in the tree's list
    count: int  # how many nodes it has

    @property
    def nodes(self) -> Sequence[int]:
        """The places of its nodes in the tree's list; made anew each time: a long roll-out has many such lists."""
        return list(self.upwards())[::-1]

    def upwards(self) -> Iterator[int]:
        """Yield them from its end to the root."""
        path: Path | None = self
        kept = len(self.own)
        while path is not None:
            yield from reversed(path.own[:kept])
            kept, path = path.kept, path.before


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOfNodes:
    """A path to train on. Its tokens are put together each time: all sequences may have far more than their nodes."""

    id: str  # "s0"
    path: Path
    tree_nodes: Sequence[TokenNode]  # the tree's list
    masked: int  # at how many of its nodes the mask is 0 even where they were sampled: earlier sequences have them
    parent_sequence: str | None  # an earlier one with which it begins
    shared_tokens: int  # how much of that
    reward: Reward | None = None

    @property
    def branch(self) -> str:
        """Whose conversation it is."""
        return self.path.generation.call.branch

    @property
    def nodes(self) -> Sequence[int]:
        """The places of its nodes in the tree's list."""
        return self.path.nodes

    @property
    def token_ids(self) -> "Tokens[int]":
        """Its tokens."""
        tokens = as_tokens()
        for node in self._nodes():
            tokens.extend(node.token_ids)
        return tokens

    @property
    def mask(self) -> bytearray:
        """A byte a token: 1 for those that are trained on."""
        mask = bytearray()
        for count, node in enumerate(self._nodes()):
            mask += bytes((node.mask if count >= self.masked else 0,)) * len(node.token_ids)
        return mask

    @property
    def logprobs(self) -> "array[float]":
        """NaN for tokens of a prompt, and where the engine did not tell."""
        logprobs = as_logprobs()
        for node in self._nodes():
            known = node.logprobs
            logprobs.extend(as_logprobs([math.nan]) * len(node.token_ids) if known is None else known)
        return logprobs

    @property
    def weights(self) -> Sequence[WeightsSpan]:
        """Those of its sampled tokens, in order."""
        weights = list[WeightsSpan]()
        for node in self._nodes():
            for span in node.weights:
                add_span(weights, span)
        return weights

    def _nodes(self) -> Iterator[TokenNode]:
        return (self.tree_nodes[place] for place in self.nodes)


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
    nodes: Sequence[TokenNode]
    paths: Sequence[Path]  # one for each generation
    sequences: Sequence[SequenceOfNodes]
    breaks: Sequence[BreakOf]

    def numbers(self, *, sequences: bool = True) -> int:
        """Return about how many numbers and names its JSON has, with its sequences or without."""
        count = sum(len(node.token_ids) for node in self.nodes) + sum(path.count for path in self.paths)
        if sequences:
            count += sum(each.path.generation.whole + each.path.count for each in self.sequences)
        return count

    def as_json(self, *, sequences: bool = True) -> RolloutTreeObject:
        """Return it as clients see it; without `sequences`, null is in their place."""
        return {
            **self.head,
            "nodes": [_node_as_json(node) for node in self.nodes],
            "generations": [self._generation(path) for path in self.paths],
            "sequences": [self._sequence(sequence) for sequence in self.sequences] if sequences else None,
            "breaks": [
                {"generation": each.generation, "after": each.after, "position": each.position, "reason": each.reason}
                for each in self.breaks
            ],
        }

    def in_files(self) -> RolloutTreeObject:
        """Return it without sequences only where these would be too large: the nodes have all tokens even so."""
        return self.as_json(sequences=self.numbers() <= MAX_NUMBERS)

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
            "grammar": call.grammar,
        }

    def _sequence(self, sequence: SequenceOfNodes) -> SequenceObject:
        return {
            "id": sequence.id,
            "branch": sequence.branch,
            "nodes": [self.nodes[place].id for place in sequence.nodes],
            "token_ids": sequence.token_ids.tolist(),
            "mask": list(sequence.mask),
            "logprobs": numbers(sequence.logprobs),
            "weights": weights_as_json(sequence.weights),
            "parent_sequence": sequence.parent_sequence,
            "shared_tokens": sequence.shared_tokens,
            "reward": sequence.reward,
        }


def unknown(vocabulary: str) -> None:
    """Know no format."""


def tree_of(
    head: RolloutObject,
    generations: Sequence[Generation],
    *,
    masks: Masks = "first",
    format_of: FormatOf = unknown,
) -> RolloutTree:
    """Return the tree of a roll-out; `generations` are all that it has, in order.

    Without the format of its model, whose the messages of a prompt are is not known.
    """
    making = _Making(generations, format_of)
    sequences = _sequences(making, head["rewards"], masks)
    breaks = [
        BreakOf(generation=f"g{each.number}", after=f"g{each.near}", position=each.shared, reason=each.cut)
        for each in generations
        if each.cut and each.near is not None
    ]
    return RolloutTree(head=head, nodes=making.nodes, paths=making.paths, sequences=sequences, breaks=breaks)


class _Making:
    """Makes the nodes of a tree."""

    def __init__(self, generations: Sequence[Generation], format_of: FormatOf) -> None:
        self._format_of = lru_cache(format_of)
        self.nodes: list[TokenNode] = []
        self.paths: list[Path] = []
        self._by_number = {each.number: each for each in generations}
        self._path_of: dict[int, Path] = {}
        self.continued: set[int] = set()  # the numbers of generations whose whole another one begins with
        self._cuts: dict[int, set[int]] = {}  # by the numbers of generations: where others leave them
        for each in generations:
            owner = self._owner(each)
            if owner is not None:
                self._cuts.setdefault(owner.number, set()).add(each.shared)
                if each.shared == owner.whole:
                    self.continued.add(owner.number)
        for each in generations:
            self._add(each)

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
        before = None if owner is None else self._path_of[owner.number]
        shared = (
            [] if before is None else [place for place in before.own if self.nodes[place].begin < generation.shared]
        )
        own: list[int] = []
        own_cuts = self._cuts.get(generation.number, set())
        begins, rest = self._messages(generation, before, shared), 0
        role: Role = self.nodes[shared[-1]].role if shared else "prompt"
        starts = {begin for begin, _ in begins if begin > generation.shared}
        for begin, end in pairwise(
            sorted({generation.shared, generation.prompt_tokens, generation.whole, *own_cuts, *starts})
        ):
            while rest < len(begins) and begins[rest][0] <= begin:
                role, rest = begins[rest][1], rest + 1
            parent = own[-1] if own else (shared[-1] if shared else None)
            parent_id = None if parent is None else self.nodes[parent].id
            self.nodes.append(self._node(generation, begin, end, parent_id, role))
            own.append(len(self.nodes) - 1)
        count = len(own) + len(shared) + (0 if before is None else before.count - len(before.own))
        path = Path(generation=generation, before=before, kept=len(shared), own=own, count=count)
        self.paths.append(path)
        self._path_of[generation.number] = path

    def _messages(self, generation: Generation, before: Path | None, shared: Sequence[int]) -> Sequence[Begins]:
        """Return where the messages of a prompt begin, from the one on within which its own tokens begin."""
        written = self._format_of(generation.call.vocabulary)
        if written is None:
            return ()
        # The message that its own tokens begin in may have begun right before them.
        known = as_tokens() if before is None else self._last_tokens(before, shared, HEADER)
        found = written.messages_in(known + generation.tail, whole=before is None)
        return [(generation.shared - len(known) + begin, role) for begin, role in found]

    def _last_tokens(self, path: Path, own: Sequence[int], count: int) -> "Tokens[int]":
        """Return the last tokens of a path that ends with some of its own nodes."""
        tokens = as_tokens()
        above = islice(path.upwards(), len(path.own), None)
        for place in chain(reversed(own), above):
            if len(tokens) >= count:
                break
            tokens = self.nodes[place].token_ids[-(count - len(tokens)) :] + tokens
        return tokens

    def _node(self, generation: Generation, begin: int, end: int, parent: str | None, role: Role) -> TokenNode:
        name, call, prompt = f"n{len(self.nodes)}", generation.call, generation.prompt_tokens
        if end <= prompt:
            return TokenNode(
                id=name,
                parent=parent,
                kind="prompt",
                role=role,
                token_ids=generation.tail[begin - generation.shared : end - generation.shared],
                begin=begin,
                generation=generation,
                images=[(at - begin, digest) for at, digest in call.images if begin <= at < end],
            )
        first, last = begin - prompt, end - prompt
        return TokenNode(
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
    latest = {reward["turn"]: place for place, reward in enumerate(rewards)}  # the last of each turn, and of the whole
    for path in making.paths:
        if path.generation.number not in making.continued:
            # Whoever has a node has all before it, too: so those that no other one has are the last ones.
            new = list(takewhile(lambda place: place not in first, path.upwards()))
            last_shared = next(islice(path.upwards(), len(new), None), None)
            last = None if last_shared is None else making.nodes[last_shared]
            reward = _last_reward(making.nodes, path, latest)
            sequence = SequenceOfNodes(
                id=f"s{len(sequences)}",
                path=path,
                tree_nodes=making.nodes,
                masked=path.count - len(new) if masks == "first" else 0,
                parent_sequence=None if last_shared is None else first[last_shared],
                shared_tokens=0 if last is None else last.begin + len(last.token_ids),
                reward=None if reward is None else rewards[reward]["reward"],
            )
            sequences.append(sequence)
            first.update(dict.fromkeys(new, sequence.id))
    return sequences


def _last_reward(nodes: Sequence[TokenNode], path: Path, latest: Mapping[str | None, int]) -> int | None:
    """Return the place of the last reward of a sequence: of the whole roll-out, or of a response in it.

    An attempt that shares no more than the prompt with another one, or the beginning of its answer, is not of that one.
    """
    of_whole = latest.get(None)
    if len(latest) == (of_whole is not None):  # no response has one
        return of_whole
    turns = {nodes[place].generation.call.response_id for place in path.upwards() if nodes[place].ends_answer}
    return max((latest[turn] for turn in (None, *turns) if turn in latest), default=None)


def _node_as_json(node: TokenNode) -> NodeObject:
    call, sampled = node.generation.call, node.kind == "sampled"
    times = call.times
    return {
        "id": node.id,
        "parent": node.parent,
        "kind": node.kind,
        "role": node.role,
        "token_ids": node.token_ids.tolist(),
        "mask": node.mask,
        "logprobs": None if node.logprobs is None else numbers(node.logprobs),
        "top_logprobs": None
        if node.tops is None
        else [[(token, number(value)) for token, value in each] for each in node.tops],
        "response_id": call.response_id,
        "generation": f"g{node.generation.number}",
        "branch": call.branch,
        "agent": call.agent,
        "finish_reason": call.finish if node.ends_answer else None,
        "times": {
            "queued": times.queued,
            "asked": times.asked,
            "first_token": times.first_token,
            "ended": times.ended,
        }
        if sampled
        else None,
        "weights": weights_as_json(node.weights),
        "images": [{"at": at, "digest": digest} for at, digest in node.images],
        "routed_experts": call.experts if sampled else None,
    }


def weights_as_json(spans: Sequence[WeightsSpan]) -> list[WeightsObject]:
    """Return versions of weights as clients see them."""
    return [{"version": span.version, "tokens": span.tokens} for span in spans]
