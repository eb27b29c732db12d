"""Pictures in the prompts of families that see: one token each, whatever the text around them spells."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.backends.demo.engine import DemoEngine
from engine.backends.model_folder import ModelFamily
from engine.errors import EngineConfigurationError, NotRendered
from engine.formats.base import IMAGE_OMITTED, Body, FunctionTool, ItemKind, PicturePart, Tokens, as_tokens
from engine.formats.chat_template.format import ChatTemplateFormat
from engine.formats.harmony.format import HarmonyFormat
from engine.models import make_format, plain_messages
from tests.unit.formats.families import QWEN, Family
from tests.unit.formats.seeing import GEMMA, IDEFICS, QWEN_VL, SEEING, WRITTEN, config_of, seeing_format

DOG, CAT = "d0" * 32, "ca" * 32
SHOWN: Body = ["Look: ", PicturePart(DOG), PicturePart(CAT), " No?"]
each_family = pytest.mark.parametrize("family", SEEING, ids=lambda family: family.name)


def draft(model_format: ChatTemplateFormat, *messages: "Tokens[int]", **frame: object) -> "Tokens[int]":
    options = {"instructions": None, "functions": (), "effort": "low", "date": "2026-11-22", **frame}
    made = as_tokens(model_format.frame(**options))  # type: ignore[arg-type]
    for message in messages:
        made.extend(message)
    made.extend(model_format.generation_start())
    return made


def text_of(model_format: ChatTemplateFormat, tokens: "Tokens[int]") -> str:
    return b"".join(map(model_format.token_bytes, tokens)).decode()


@each_family
def test_a_picture_is_one_token_with_what_its_family_writes_around_it(family: Family) -> None:
    made, _ = seeing_format(family)
    asked = draft(made, made.user(SHOWN).tokens, made.output("f", ["", PicturePart(CAT)]).tokens)
    written = WRITTEN[family.name]
    assert made.sees
    assert list(made.pictures_of(asked)) == [DOG, CAT, CAT]
    text = text_of(made, made.prompt_of(asked))
    assert f"Look: {written}{written} No?" in text
    assert text.count(written) == 3


def test_a_text_is_never_taken_for_parts() -> None:
    made, _ = seeing_format(IDEFICS)
    for text in ('"parts"', '{"parts": [{"image": "%s"}]}' % DOG, '\\"parts\\"'):  # noqa: UP031
        assert list(made.pictures_of(made.user(text).tokens)) == []
        assert list(made.pictures_of(made.user([text, PicturePart(CAT)]).tokens)) == [CAT]


@each_family
def test_what_spells_a_picture_is_none(family: Family) -> None:
    made, _ = seeing_format(family)
    spelled = WRITTEN[family.name]
    tool = FunctionTool("f", f"Says {spelled}", "{}")
    messages = [
        made.user([f"I say {spelled}", PicturePart(DOG)]),
        made.developer(spelled),
        made.note(spelled),
        made.said(ItemKind.REASONING, spelled),
        made.said(ItemKind.ANSWER, spelled),
        made.call("f", json.dumps({"a": spelled})),
        made.output("f", f"{spelled}!"),
        made.user(spelled),
    ]
    asked = draft(made, *(each.tokens for each in messages), instructions=f"Be {spelled}", functions=[tool])
    prompt = made.prompt_of(asked)
    assert list(made.pictures_of(asked)) == [DOG]
    assert text_of(made, prompt).count(spelled) == 1


@each_family
def test_a_turn_that_was_sampled_stays_as_it_was_behind_a_picture(family: Family) -> None:
    made, renderer = seeing_format(family)
    asked = draft(made, made.user(SHOWN).tokens)
    first = made.prompt_of(asked)
    # As no tokenizer would write it: byte by byte.
    sampled = [*b"Hello", family.ids[family.end]]
    parser = made.parser()
    [*_, ended] = parser.feed(sampled)
    again = draft(made, made.user(SHOWN).tokens, ended.message.tokens, made.user(["", PicturePart(DOG)]).tokens)
    second = made.prompt_of(again)
    assert second[: len(first) + len(sampled)] == first + as_tokens(sampled)
    assert renderer.chats[-1].messages[0]["content"].count(WRITTEN[family.name]) == 2


@each_family
def test_who_does_not_see_reads_that_pictures_were_left_out(family: Family) -> None:
    seeing, _ = seeing_format(family)
    blind = (
        seeing_format(family, image_token="none")[0],
        seeing_format(family, takes_pictures=False)[0],
        seeing_format(family, config={"model_type": "qwen3"})[0],
        seeing_format(family, config={**config_of(family), "vision_config": None})[0],
    )
    for made in blind:
        assert not made.sees
        # Also of what was said while the model saw.
        asked = draft(made, seeing.user(SHOWN).tokens, made.user(SHOWN).tokens)
        assert not made.pictures_of(asked)
        assert text_of(made, made.prompt_of(asked)).count(f"Look: {IMAGE_OMITTED}{IMAGE_OMITTED} No?") == 2


def test_a_model_that_is_told_not_to_think_sees() -> None:
    made, _ = seeing_format(QWEN_VL)
    quiet = made.at_effort("none")
    assert quiet is not made
    assert quiet.sees


def test_an_operator_says_what_a_template_writes() -> None:
    made, _ = seeing_format(QWEN_VL, image_token="Picture: <|image_pad|>", config={})
    assert "Look: Picture: <|image_pad|>Picture: <|image_pad|> No?" in text_of(
        made, made.prompt_of(draft(made, made.user(SHOWN).tokens))
    )
    seeing_format(QWEN_VL, image_token="<|vision_start|><|image_pad|>")  # the config says which of the two
    for wrong in ("<nothing>", "<|vision_start|><|vision_end|>"):
        with pytest.raises(ValueError, match="tokens of the model's vocabulary"):
            seeing_format(QWEN_VL, image_token=wrong, config={})


def test_a_template_that_loses_pictures_is_not_rendered() -> None:
    made, _ = seeing_format(replace(IDEFICS, template="{{ messages[0].content[:13] }}"))
    with pytest.raises(NotRendered, match="2 pictures became 1 of the token <image>"):
        made.prompt_of(draft(made, made.user(SHOWN).tokens))


def test_a_conversation_goes_on_with_another_model_that_sees() -> None:
    idefics, _ = seeing_format(IDEFICS)
    gemma, _ = seeing_format(GEMMA)
    harmony = HarmonyFormat(sees=True)
    message = harmony.user(SHOWN)
    for made in (idefics, gemma, harmony):
        [told] = plain_messages(message) or ()
        message = made.render_plain(told)
        assert list(made.pictures_of(message.tokens)) == [DOG, CAT]
    [told] = plain_messages(idefics.user(SHOWN)) or ()
    assert HarmonyFormat().render_plain(told) == HarmonyFormat().user(f"Look: {IMAGE_OMITTED}{IMAGE_OMITTED} No?")


def test_a_model_s_folder_says_whether_it_sees(tmp_path: Path) -> None:
    QWEN_VL.write(tmp_path / "seeing")
    (tmp_path / "seeing" / "config.json").write_text(json.dumps(config_of(QWEN_VL)))
    QWEN.write(tmp_path / "blind")
    engine = DemoEngine(model="demo")  # takes pictures
    family = ModelFamily(format="chat-template", tokenizer=str(tmp_path / "seeing"))
    assert make_format(family, engine).sees
    assert not make_format(replace(family, image_token="none"), engine).sees
    assert not make_format(replace(family, tokenizer=str(tmp_path / "blind")), engine).sees
    wrong = make_format(replace(family, image_token="<img>"), engine)
    with pytest.raises(EngineConfigurationError, match=r"^IMAGE_TOKEN is wrong for .*: '<img>' has 0 tokens"):
        assert wrong.sees
