"""Which format a model has: what an operator names, or what its files say."""

from collections.abc import Mapping

from engine.backends.base import BaseEngine
from engine.backends.model_folder import ModelFamily, read_sight, read_vocabulary
from engine.backends.vllm.chat import vllm_parsers
from engine.formats.base import ModelFormat, PlainMessage, RenderedMessage
from engine.formats.chat_template import prompt
from engine.formats.chat_template.format import ChatTemplateFormat, FamilyTraits, MakeReader
from engine.formats.chat_template.reader import CALL, PYTHON, THINK, CallStyle
from engine.formats.chat_template.vocabulary import Vocabulary
from engine.formats.harmony import format as harmony
from engine.formats.harmony.encoding import START
from engine.formats.harmony.format import HarmonyFormat

# By REASONING_PARSER and TOOL_PARSER: our own words, and vLLM's names for what our reader reads, too.
# Of reasoning: whether a model thinks between tags, and whether the first of them is in the prompt.
REASONING: Mapping[str, tuple[bool, bool] | None] = {
    "auto": None,  # as its vocabulary tells
    "none": (False, False),
    "think": (True, False),
    "qwen3": (True, False),
    "think-open": (True, True),
    "deepseek_r1": (True, True),
}
CALLS: Mapping[str, CallStyle | None] = {
    "auto": None,
    "none": CallStyle.NONE,
    "hermes": CallStyle.HERMES,
    "qwen": CallStyle.HERMES,
    "json": CallStyle.JSON,
    "llama3_json": CallStyle.JSON,
}


def plain_messages(message: RenderedMessage) -> list[PlainMessage] | None:
    """Return what a message of a chain says, whichever format it was written in; None where none of ours wrote it."""
    first = next(iter(message.tokens), None)
    # Each format begins its messages with a token that the other one never has.
    if first == prompt.MARK:
        return prompt.plain_messages(message)
    return harmony.plain_messages(message) if first == START else None


def make_format(family: ModelFamily, engine: BaseEngine) -> ModelFormat:
    """Return the format of a model, which has its prompts rendered by its engine, if it is to."""
    if family.is_harmony:
        return HarmonyFormat(sees=engine.supports_pictures)  # engines that play a model say so at once

    def vocabulary() -> Vocabulary:
        return read_vocabulary(family.tokenizer or family.model)

    thoughts = REASONING.get(family.reasoning_parser)
    style = CALLS.get(family.tool_parser)
    named = family.vllm_parsers

    def vllms(reasoning: str, tool: str) -> MakeReader:
        return vllm_parsers(family.tokenizer or family.model, reasoning, tool)

    def traits(read: Vocabulary) -> FamilyTraits:
        # Where no parser is named, it may think. Whether a grammar lets it, its vocabulary decides.
        thinks, thinks_first = thoughts or (True, False)
        held = thinks if thoughts else THINK in read.added
        # How a family writes calls its vocabulary tells, too: most write them as Hermes does.
        writes_json = PYTHON in read.added and CALL not in read.added
        return FamilyTraits(
            style or (CallStyle.JSON if writes_json else CallStyle.HERMES),
            thinks,
            thinks_first,
            thinks_under_grammar=held,
            reader=vllms(*named) if named else None,
            quiet_reader=vllms("", named[1]) if named and named[1] else None,
            template_kwargs=family.template_kwargs,
            sight=read_sight(family.tokenizer or family.model, read, family.image_token),
        )

    return ChatTemplateFormat(vocabulary, engine.render, traits, engine.tokenize, lambda: engine.supports_pictures)
