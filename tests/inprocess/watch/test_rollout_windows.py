"""What the pages of roll-outs read and draw: windows of tokens, texts of tokens, rails, where two part."""

import math
import random
from array import array
from typing import cast

import pytest
from django.db import connection
from django.test import Client

from engine.formats.base import as_tokens
from engine.formats.harmony.encoding import encode_harmony
from engine.formats.harmony.format import HarmonyFormat
from responses_app.extensions.console.watch.rollouts.outline import MAX_COLUMNS, Outline, OutlineStep, Rails
from responses_app.extensions.console.watch.rollouts.showing import (
    MAX_TEXT,
    ShownToken,
    TokenText,
    level_of,
    reward_number,
    reward_text,
    text_of,
    texts_of,
    told_of,
)
from responses_app.extensions.console.watch.rollouts.views import group_page, part
from responses_app.extensions.console.watch.text import Places
from responses_app.protocol.rollouts.generations import EngineCall, Recorded
from responses_app.protocol.rollouts.requests import Break
from responses_app.protocol.rollouts.tree import tree_of
from responses_app.resources.rollouts.model import Rollout
from responses_app.resources.rollouts.rows import read_generations, record_of
from tests.inprocess.admin.conftest import admin, client_with, closed_store  # noqa: F401 - fixtures
from tests.kit.plain_format import FORMAT as PLAIN
from tests.kit.sample_rollouts import HOSTILE, agent, keep

HARMONY = HarmonyFormat()


def texts(text: str) -> list[TokenText]:
    """Return what the tokens of a text are shown as."""
    return list(texts_of(encode_harmony(text), HARMONY))


def random_calls(seed: int) -> list[Recorded]:
    """Return calls that continue, fork and break what came before at random places; some have no log probabilities."""
    chance = random.Random(seed)
    wholes = [as_tokens()]
    calls = []
    for _ in range(30):
        before = chance.choice(wholes[-6:])
        kept = len(before) if chance.random() < 0.5 else chance.randint(0, len(before))
        prompt = before[:kept]
        prompt.extend(chance.choices(range(300_000 if chance.random() < 0.2 else 20_000_000), k=chance.randint(1, 9)))
        sampled = as_tokens(chance.choices(range(200_000), k=chance.randint(0, 7)))
        logprobs = [-chance.random() for _ in sampled] if chance.random() < 0.7 else None
        call = EngineCall(
            response_id="", sampled=sampled, logprobs=None if logprobs is None else array("d", logprobs), finish="stop"
        )
        calls.append(Recorded(call, prompt))
        wholes.append(prompt + sampled)
    return calls


@pytest.mark.parametrize("seed", range(6))
def test_windows_have_the_tokens_of_the_tree(db: None, seed: int) -> None:
    row = keep(f"random.{seed}", random_calls(seed))
    tree = tree_of(record_of(row).as_json(), read_generations(connection, row.pk, range(row.generations)))
    outline, chance = Outline.of(row), random.Random(seed)
    assert len(outline.steps) == len(tree.paths) == 30
    for path in tree.paths:
        nodes = [tree.nodes[place] for place in path.nodes]
        tokens = [token for node in nodes for token in node.token_ids]
        logprobs = [
            value
            for node in nodes
            for value in (node.logprobs if node.logprobs is not None else [math.nan] * len(node.token_ids))
        ]
        number, whole = path.generation.number, len(tokens)
        assert (outline.steps[number].whole, outline.steps[number].prompt) == (whole, path.generation.prompt_tokens)
        for begin, end in ((0, whole), sorted(chance.choices(range(whole + 1), k=2))):
            read = list(outline.window(number, begin, end))
            assert [token for each in read for token in each.tokens] == tokens[begin:end]
            known = [
                value
                for each in read
                for value in (each.logprobs if each.logprobs is not None else [math.nan] * len(each.tokens))
            ]
            assert [str(value) for value in known] == [str(value) for value in logprobs[begin:end]]
            kinds = {place: each.stretch.kind for each in read for place in range(each.stretch.begin, each.stretch.end)}
            of_nodes = [node.kind for node in nodes for _ in node.token_ids]
            assert kinds == {place: of_nodes[place] for place in range(begin, end)}
    begun = outline.beginnings(list(outline.steps), 3)
    assert all(list(begun[path.generation.number]) == list(path.generation.call.sampled[:3]) for path in tree.paths)


def test_where_two_part(db: None) -> None:
    first, same, other = (keep(f"part.{seed}", agent(seed % 10)) for seed in (0, 10, 1))
    outlines = [Outline.of(each) for each in (first, same, other)]
    found = part(outlines[0], outlines[2])
    assert (found.alike, found.left, found.right) == (1, 1, 1)
    tokens = [outline.tokens(1, 0, 10_000) for outline in (outlines[0], outlines[2])]
    assert tokens[0][: found.position] == tokens[1][: found.position]
    assert tokens[0][found.position] != tokens[1][found.position]
    alike = part(outlines[0], outlines[1])
    assert (alike.alike, alike.left, alike.right) == (len(outlines[0].steps), None, None)
    short = Outline.of(keep("part.short", agent(0)[:2]))
    ended = part(short, outlines[0])
    assert (ended.alike, ended.left, ended.right) == (2, None, 2)


def test_signs_of_a_format_are_no_text_and_half_characters_are_bytes() -> None:
    shown = texts("<|start|>ab\n👩‍🚀")
    assert shown[0] == TokenText("<|start|>", "special")
    assert [each.ends_line for each in shown].count(True) == 1
    assert "".join(each.text for each in shown if each.kind == "text") == "ab↵👩\\u200d🚀"
    assert [each.text for each in shown if each.kind == "bytes"] == ["f0 9f 91", "f0 9f 9a"]


def test_what_never_becomes_a_character_is_shown_as_its_bytes() -> None:
    cut = encode_harmony("🚀")[:1]
    assert [each.kind for each in texts_of([*cut, *cut, *encode_harmony("a")], HARMONY)] == ["bytes", "text", "text"]
    # A sign of the format ends what was begun before it.
    shown = list(texts_of([*cut, *encode_harmony("<|end|>é")], HARMONY))
    assert [each.text for each in shown] == ["f0 9f 9a", "<|end|>", "é"]
    assert [each.text for each in texts_of([0xE9], PLAIN)] == ["e9"]
    assert "".join(each.text for each in texts_of([0xFF, 0x41], PLAIN)) == "\\xffA"


def test_hostile_text_stays_in_its_token() -> None:
    whole = "".join(each.text for each in texts(HOSTILE))
    assert all(ord(character) not in range(0x202A, 0x2070) for character in whole)
    assert not {"\x00", "\u200b", "\ufeff", "\u00ad", "\n", "\r"} & set(whole)
    assert "\\u202e" in whole
    [mark] = texts_of([encode_harmony("\u0301")[-1]], HARMONY)
    assert mark.text.startswith(("◌", "cc", "81")) or mark.kind == "bytes"
    assert len(next(texts_of([1], cast(HarmonyFormat, _Long()))).text) <= MAX_TEXT + 1
    assert [each.kind for each in texts_of([7, 8], None)] == ["id", "id"]
    assert text_of([7, 8], None) == ""


class _Long:
    """A format whose every token is long."""

    is_loaded = True

    def token_bytes(self, token: int) -> bytes:
        """Return many bytes."""
        return b"x" * 10_000

    def is_special(self, token: int) -> bool:
        """None is."""
        return False


@pytest.mark.parametrize(
    ("logprob", "level", "told"),
    [
        (0.0, "p6", "0.0000 (100.00 %)"),
        (-0.0, "p6", "0.0000 (100.00 %)"),
        (-0.05, "p5", "−0.0500 (95.12 %)"),
        (-0.6, "p4", "−0.6000 (54.88 %)"),
        (-2.0, "p3", "−2.0000 (13.53 %)"),
        (-4.0, "p2", "−4.0000 (1.83 %)"),
        (-30.0, "p1", "−30.0000 (9.4e−12 %)"),
        (-math.inf, "p1", "−inf (0.0e+00 %)"),
        (math.nan, "", "not known"),
        (None, "", "not known"),
    ],
)
def test_how_likely_a_token_was(logprob: float | None, level: str, told: str) -> None:
    assert (level_of(logprob), told_of(logprob)) == (level, told)
    token = ShownToken(place=0, id=7, shown=TokenText("a", "text"), logprob=logprob)
    assert token.title == ("token 7" if logprob is None else f"token 7, log probability {told}")


def step(number: int, parent: int | None = None, cut: str = "") -> OutlineStep:
    """A generation: a continuation of its parent, or what leaves it."""
    return OutlineStep(number, parent, 1, parent, cast(Break, cut), 2, 1, 0, (3, 3, 0))


def rails_of(*steps: OutlineStep) -> tuple[Rails, list[int]]:
    """Return rails, and the column of each generation."""
    outline = Outline(Rollout(), {each.number: each for each in steps})
    rails = Rails.of(outline)
    return rails, [rails.strand_of[each.number].column for each in steps]


def test_a_conversation_whose_every_turn_breaks_stays_in_one_column() -> None:
    rails, columns = rails_of(step(0), *(step(number, number - 1, "reasoning_settled") for number in range(1, 9)))
    assert columns == [0] * 9
    assert len(rails.strands) == 9


def test_forks_get_columns_of_their_own_until_nothing_leaves_them() -> None:
    _, columns = rails_of(step(0), step(1, 0), step(2, 0, "fork"), step(3, 1), step(4, 0, "sub_agent"), step(5, 2))
    assert columns == [0, 0, 1, 0, 2, 1]
    _, many = rails_of(step(0), *(step(number, 0, "fork") for number in range(1, 40)), step(40, 1))
    assert max(many) < MAX_COLUMNS


def test_a_row_has_the_lines_that_pass_it_and_a_curve_from_what_it_leaves() -> None:
    steps = step(0), step(1, 0), step(2, 0, "fork"), step(3, 1)
    rails, _ = rails_of(*steps)
    rows = rails.rows(steps)
    assert [bool(row.curve) for row in rows] == [False, False, True, False]
    assert [row.is_cut for row in rows] == [False, False, True, False]
    assert [(line.begin, line.end) for line in rows[2].lines] == [("0", "100%")]
    assert [(line.begin, line.end) for line in rows[3].lines] == [("0", "22")]


def test_rewards() -> None:
    assert reward_text(0.25) == "0.25"
    assert reward_text({"<b>\u202e": -1.0, "b": 2.0}) == "<b>\\u202e −1, b 2"
    assert reward_text({str(number): 1.0 for number in range(20)}).endswith(", …")
    assert (reward_number({"a": 1.0, "b": 2.0}), reward_number(None), reward_text(None)) == (3.0, None, "–")


def test_a_group_has_a_table_for_rewards_as_large_as_may_be(db: None) -> None:
    for name, reward in (("high", 1e300), ("low", -1e300), ("named", {"a": 1e300, "b": 1e300})):
        keep(f"huge.{name}", agent(0), group="huge", rewards=[{"reward": reward, "turn": None, "at": 1}])
    page = group_page(Rollout.objects.all(), "huge", Places(is_staff=False), project="", sort="")
    [mean] = [each for each in page["figures"] if each[0] == "Mean reward"]
    assert mean == ("Mean reward", "6.67e+299", "± 1.25e+300")
    assert [each.name for each, _ in page["attempts"]] == ["huge.named", "huge.high", "huge.low"]


def test_staff_choose_between_projects_that_have_the_same_id(admin: Client, client_with: object) -> None:  # noqa: F811
    keep("twice", agent(0))
    keep("twice", agent(1), project="elsewhere", id="rollout_twice2")
    html = admin.get("/watch/rollouts/twice").content.decode()
    assert "project=elsewhere" in html
    assert "project=default" in html
    one = admin.get("/watch/rollouts/twice?project=elsewhere")
    assert one.status_code == 200
    assert "Generations" in one.content.decode()
    assert admin.get("/watch/rollouts/twice?project=nowhere").status_code == 404
    assert admin.get("/watch/rollouts/twice?project=%00").status_code == 200
    anybody = client_with()  # type: ignore[operator]
    assert anybody.get("/watch/rollouts/twice?project=default").status_code in (302, 403)
