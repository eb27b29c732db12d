"""Three families that see, as their templates and configs have pictures: like Idefics3, like Qwen-VL, like Gemma 3."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.formats.chat_template.format import ChatTemplateFormat, FamilyTraits
from engine.formats.chat_template.vocabulary import AUTO, sight_of, vocabulary_of
from tests.unit.formats.families import QWEN, Family
from tests.unit.formats.rendering import Renderer

_PLAIN = """
{%- for message in messages -%}
<|im_start|>{{ message.role }}:{{ message.content }}
{%- for call in message.tool_calls %}{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor -%}
<end_of_utterance>⏎
{%- endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant:{% endif -%}
"""
_TURNS = """
{%- for message in messages -%}
<start_of_turn>{{ 'model' if message.role == 'assistant' else 'user' }}⏎{{ message.content }}<end_of_turn>⏎
{%- endfor -%}
{%- if add_generation_prompt %}<start_of_turn>model⏎{% endif -%}
"""
IDEFICS = Family(
    "idefics3",
    ("<image>", "<fake_token_around_image>", "<global-img>", "<|im_start|>", "<end_of_utterance>"),
    (),
    "<end_of_utterance>",
    _PLAIN,
)
QWEN_VL = replace(
    QWEN, name="qwen2_5_vl", special=(*QWEN.special, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
)
GEMMA = Family(
    "gemma3",
    ("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"),
    (),
    "<end_of_turn>",
    _TURNS,
)
SEEING = (IDEFICS, QWEN_VL, GEMMA)
WRITTEN = {  # what a template writes for a picture
    IDEFICS.name: "<image>",
    QWEN_VL.name: "<|vision_start|><|image_pad|><|vision_end|>",
    GEMMA.name: "<start_of_image>",
}
# What an engine puts in the place of the token that it expands, where a picture is three tokens to the model.
EXPANDED: Mapping[str, tuple[str, str]] = {
    IDEFICS.name: ("<image>", "<fake_token_around_image><global-img><image><image><image><fake_token_around_image>"),
    QWEN_VL.name: ("<|image_pad|>", "<|image_pad|><|image_pad|><|image_pad|>"),
    GEMMA.name: (
        "<start_of_image>",
        "\n\n<start_of_image><image_soft_token><image_soft_token><image_soft_token><end_of_image>\n\n",
    ),
}
_NAMED = {IDEFICS.name: "<image>", QWEN_VL.name: "<|image_pad|>", GEMMA.name: "<image_soft_token>"}


def config_of(family: Family) -> dict[str, Any]:
    field = "image_token_index" if family is GEMMA else "image_token_id"
    return {"model_type": family.name, "vision_config": {}, field: family.ids[_NAMED[family.name]]}


def seeing_format(
    family: Family, *, image_token: str = AUTO, config: Mapping[str, Any] | None = None, takes_pictures: bool = True
) -> tuple[ChatTemplateFormat, Renderer]:
    renderer = Renderer(family)
    vocabulary = vocabulary_of(family.tokenizer(), [{"eos_token": family.end}])
    config = config_of(family) if config is None else config
    traits = FamilyTraits(thinks=family is QWEN_VL, sight=sight_of(config, vocabulary, image_token))
    made = ChatTemplateFormat(
        lambda: vocabulary, renderer, lambda _: traits, renderer.encode, takes_pictures=lambda: takes_pictures
    )
    return made, renderer
