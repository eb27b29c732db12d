"""Spans of prompts have the roles of the messages that were sent, wherever a tree is forked."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.formats.base import ItemKind, ModelFormat, RenderedMessage, Role, as_tokens
from engine.formats.harmony.format import HarmonyFormat
from responses_app.protocol.rollouts.generations import Recorded
from responses_app.protocol.rollouts.tree import RolloutTree, tree_of
from tests.kit.plain_format import PlainFormat
from tests.kit.recorded import head, placed, recorded

HARMONY = HarmonyFormat()
SPEAKERS: Sequence[Role] = ("user", "developer", "tool", "assistant")
Prompt = list[tuple[int, Role]]  # tokens, and whose each is


def said(who: Role, text: str) -> RenderedMessage:
    match who:
        case "user":
            return HARMONY.user(text)
        case "developer":
            return HARMONY.developer(text)
        case "tool":
            return HARMONY.output("f", text)
    return HARMONY.said(ItemKind.ANSWER, text)


def frame(instructions: str | None) -> Prompt:
    """Return what stands before the first message: one of the system, and one of the developer."""
    system = HARMONY.frame(instructions=None, functions=(), effort="low", date="2026-11-27")
    whole = HARMONY.frame(instructions=instructions, functions=(), effort="low", date="2026-11-27")
    assert whole[: len(system)] == system
    return [(token, "system" if place < len(system) else "developer") for place, token in enumerate(whole)]


# Few texts, which begin alike: so conversations fork in the middle of messages, and within their headers.
messages = st.lists(st.tuples(st.sampled_from(SPEAKERS), st.sampled_from(("", "a", "a b", "a b c", "a c"))), max_size=4)


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[Prompt, list[int]]]:
    """Return calls of the engine as agents make them: they go on with what was said, or say some of it anew."""
    calls: list[tuple[Prompt, list[int]]] = []
    start: Prompt = [(token, "assistant") for token in HARMONY.generation_start()]
    for _ in range(draw(st.integers(1, 6))):
        prompt = frame(draw(st.sampled_from((None, "a", "a b"))))
        if calls and draw(st.booleans()):
            before, sampled = draw(st.sampled_from(calls))
            prompt = [*before, *((token, "assistant") for token in sampled)]
        for who, text in draw(messages):
            prompt += [(token, who) for token in said(who, text).tokens]
        answer = said("assistant", draw(st.sampled_from(("a", "a b")))).tokens[len(start) :]
        calls.append(([*prompt, *start], list(answer)))
    return calls


def tree(calls: Sequence[tuple[Prompt, list[int]]], written: ModelFormat | None = HARMONY) -> RolloutTree:
    kept: list[Recorded] = []
    for prompt, sampled in calls:
        each = recorded([token for token, _ in prompt], sampled)
        kept.append(replace(each, call=replace(each.call, vocabulary="harmony")))
    formats = {"harmony": written}
    return tree_of(head(), placed(kept), format_of=formats.get)


@given(conversations())
def test_roles_are_those_of_the_messages(calls: list[tuple[Prompt, list[int]]]) -> None:
    made = tree(calls)
    for path, (prompt, _) in zip(made.paths, calls, strict=True):
        for node in (made.nodes[place] for place in path.own):
            if node.kind == "sampled":
                assert node.role == "assistant"
            else:
                whose = {role for _, role in prompt[node.begin : node.begin + len(node.token_ids)]}
                assert whose == {node.role}


@given(conversations())
def test_spans_partition_each_prompt(calls: list[tuple[Prompt, list[int]]]) -> None:
    made = tree(calls)
    for path, (prompt, sampled) in zip(made.paths, calls, strict=True):
        nodes = [made.nodes[place] for place in path.nodes]
        assert all(node.token_ids for node in nodes)
        assert [token for node in nodes for token in node.token_ids] == [*(token for token, _ in prompt), *sampled]
        assert [node.begin for node in nodes[1:]] == [node.begin + len(node.token_ids) for node in nodes[:-1]]


@given(conversations())
def test_roles_change_no_sequence(calls: list[tuple[Prompt, list[int]]]) -> None:
    told, silent = tree(calls), tree(calls, None)
    assert {node.role for node in silent.nodes} <= {"prompt", "assistant"}
    for one, other in zip(told.sequences, silent.sequences, strict=True):
        assert (one.token_ids, one.mask, list(one.weights)) == (other.token_ids, other.mask, list(other.weights))
        assert (one.parent_sequence, one.shared_tokens) == (other.parent_sequence, other.shared_tokens)
    assert told.breaks == silent.breaks


@pytest.mark.parametrize(
    ("prompt", "written"),
    [
        (HARMONY.raw_prompt("Once upon a time"), HARMONY),
        (as_tokens(range(5)), None),
        (as_tokens(range(5)), PlainFormat()),
    ],
    ids=["no message", "no format", "a format that does not tell"],
)
def test_what_is_not_of_a_message_is_a_prompt(prompt: Sequence[int], written: ModelFormat | None) -> None:
    made = tree_of(head(), placed([recorded(prompt, [1])]), format_of=lambda _: written)
    assert [node.role for node in made.nodes] == ["prompt", "assistant"]
