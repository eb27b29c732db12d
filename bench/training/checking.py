"""Whether what is kept of roll-outs is what the engines were asked and gave: token by token, and no break too many."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.training.engine import digest_of, logprob_of
from bench.training.harness import Trace, own_part
from engine.formats.base import as_tokens

Record = dict[str, Any]
SHOWN = 5  # problems that are told in words


@dataclass(slots=True)
class Checked:
    """What was found over all roll-outs."""

    rollouts: int = 0
    generations: int = 0
    tokens: int = 0  # that were compared, of prompts and sampled
    mismatches: int = 0  # tokens, log probabilities or versions that differ from the engines' record
    broken: int = 0  # roll-outs that have another number of sequences than their tokens allow
    drifted: int = 0  # roll-outs whose prompts do not go on as they could have
    continued: int = 0  # turns that were cut, and went on elsewhere
    unanswered: int = 0  # turns that are recorded, though their client got no answer, and asked again
    two_versions: int = 0  # turns that ran across an update
    unknown: int = 0  # tokens of turns that ran across an update and were cut: nobody knows which weights sampled them
    breaks: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def wrong(self, name: str, problem: str) -> None:
        """Note a mismatch."""
        self.mismatches += 1
        self.problems.append(f"{name}: {problem}")


class EngineRecords:
    """What the engines have written down, by response."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._of: dict[str, list[Record]] = defaultdict(list)
        for file in files:
            with file.open() as lines:
                for line in lines:
                    record = json.loads(line)
                    self._of[record["response"]].append(record)
        for records in self._of.values():
            records.sort(key=lambda record: int(record["prompt_tokens"]))

    def of(self, response_id: str) -> list[Record]:
        """Return the generations of a response, in their order: more than one where its turn was cut."""
        return self._of.get(response_id, [])

    def unread(self, response_ids: set[str]) -> int:
        """Return how many tokens were sampled for responses that no roll-out has."""
        return sum(
            len(record["sampled"]) for each, records in self._of.items() if each not in response_ids
            for record in records
        )  # fmt: skip


def check(tree: Any, trace: Trace, answered: set[str], engines: EngineRecords, checked: Checked) -> None:
    """Compare a roll-out with what the engines have written down. `answered` are the responses its client got."""
    name, nodes = trace.name, {node["id"]: node for node in tree["nodes"]}
    checked.rollouts += 1
    wholes = []
    for generation in tree["generations"]:
        path = [nodes[each] for each in generation["nodes"]]
        tokens = [token for node in path for token in node["token_ids"]]
        wholes.append((tokens, generation["prompt_tokens"]))
        _check_generation(name, generation, path, tokens, engines.of(generation["response_id"]), checked)
    recorded = [own_part(each["response_id"]) for each in tree["generations"]]
    if missing := answered - set(recorded):
        checked.wrong(name, f"{len(missing)} answers are not recorded")
    if len(set(recorded)) != len(recorded):
        checked.wrong(name, "a turn is recorded twice")
    unanswered = len(set(recorded) - answered)
    checked.unanswered += unanswered
    checked.breaks.update(each["reason"] for each in tree["breaks"])
    _check_sequences(name, tree, wholes, checked)
    if not unanswered and len(tree["sequences"]) != trace.sequences:
        checked.drifted += 1
        checked.problems.append(f"{name} ({trace}): {[(each['after'], each['reason']) for each in tree['breaks']]}")


def _check_generation(
    name: str, generation: Any, path: Sequence[Any], tokens: list[int], records: list[Record], checked: Checked
) -> None:
    place, length = f"{name} {generation['id']}", generation["prompt_tokens"]
    checked.generations += 1
    checked.tokens += len(tokens)
    if not records:
        checked.wrong(place, "the engines know nothing of it")
        return
    checked.continued += len(records) > 1
    if (records[0]["prompt_tokens"], records[0]["prompt"]) != (length, digest_of(tokens[:length])):
        checked.wrong(place, "another prompt than the engine's")
    sampled = [node for node in path if node["generation"] == generation["id"] and node["mask"]]
    logprobs = [each for node in sampled for each in node["logprobs"]]
    if logprobs != list(map(logprob_of, tokens[length:])):
        checked.wrong(place, "other log probabilities")
    versions = _versions(span for node in sampled for span in node["weights"])
    is_told = _told(records, tokens, versions, is_whole=generation["finish_reason"] == "stop")
    if not is_told:
        checked.wrong(
            place, f"other tokens or versions than those of the engine: {_in_words(records, tokens, versions)}"
        )
    checked.two_versions += len(set(versions) - {None}) > 1
    if unknown := versions.count(None):
        checked.unknown += unknown
        if len(records) == 1 and records[0]["finish"] == "stop":
            checked.wrong(place, f"the engine has told which weights sampled {unknown} tokens, and it is not recorded")


def _told(records: Sequence[Record], tokens: list[int], versions: list[str | None], *, is_whole: bool) -> bool:
    """Whether tokens and their versions are what engines have told, one behind the other.

    A turn that went on has been asked for with what was said before in its prompt. Two workers may have asked for the
    same: one that was cut off from its database, and one that took over. What counts is what one of them was told.
    A version that nobody knows is None.
    """
    groups: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        groups[record["prompt_tokens"]].append(record)
    begins = [*sorted(groups), len(tokens)]
    for begin, end in pairwise(begins):
        said, its_versions = tokens[begin:end], versions[begin - begins[0] : end - begins[0]]
        is_last = is_whole and end == len(tokens)
        if not any(_tells(record, tokens[:begin], said, its_versions, is_last=is_last) for record in groups[begin]):
            return False
    return len(versions) == len(tokens) - begins[0]


def _tells(record: Record, prompt: list[int], said: list[int], versions: list[str | None], *, is_last: bool) -> bool:
    spans = ({"version": each["version"], "tokens": each["end"] - each["start"]} for each in record["weights"])
    count = len(said)
    is_all = not is_last or count == len(record["sampled"])
    sampled_by = _versions(spans)[:count]
    if not is_all or len(sampled_by) != count or record["sampled"][:count] != said:
        return False
    are_right = all(version in (None, its) for version, its in zip(versions, sampled_by, strict=True))
    return are_right and record["prompt"] == digest_of(prompt)


def _in_words(records: Sequence[Record], tokens: list[int], versions: list[str | None]) -> str:
    asked = [(each["prompt_tokens"], len(each["sampled"]), each["finish"], each["weights"]) for each in records]
    return f"{len(tokens)} tokens, {Counter(versions)}, of {asked}"


def _versions(spans: Iterable[Any]) -> list[str | None]:
    return [span["version"] for span in spans for _ in range(span["tokens"])]


def _check_sequences(name: str, tree: Any, wholes: list[tuple[list[int], int]], checked: Checked) -> None:
    """Find the longest ways through all tokens without the tree, and compare the tree's sequences with them."""
    packed = [(as_tokens(tokens).tobytes(), as_tokens(tokens[:prompt]).tobytes()) for tokens, prompt in wholes]
    ends = [
        whole for place, (whole, _) in enumerate(packed)
        if not any(prompt.startswith(whole) for other, (_, prompt) in enumerate(packed) if other != place)
    ]  # fmt: skip
    shown = [as_tokens(each["token_ids"]).tobytes() for each in tree["sequences"]]
    if sorted(ends) != sorted(shown):
        checked.broken += 1
        checked.problems.append(f"{name}: {len(shown)} sequences, and {len(ends)} would do")
    masks = sum(sum(each["mask"]) for each in tree["sequences"])
    if masks != tree["usage"]["sampled_tokens"] or masks != sum(len(each) - prompt for each, prompt in wholes):
        checked.wrong(name, "masks that do not sum up to the sampled tokens")
