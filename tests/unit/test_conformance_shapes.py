"""The tables of what answers are made of, beside the types of OpenAI's and Anthropic's SDKs."""

import types
import typing
from collections.abc import Iterator
from typing import Any

import anthropic.types as anthropic_types
import openai.types.responses as openai_responses
import pytest
from openai.types import CompletionUsage, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.conversations import ConversationItemList
from openai.types.responses.response_usage import ResponseUsage
from pydantic import BaseModel

from responses_app.extensions.conformance import shapes


def flat(kind: Any) -> Iterator[Any]:
    if typing.get_origin(kind) is typing.Annotated:
        yield from flat(typing.get_args(kind)[0])
    elif typing.get_origin(kind) in (typing.Union, types.UnionType):
        for each in typing.get_args(kind):
            yield from flat(each)
    else:
        yield kind


def plain(annotation: Any) -> set[type]:
    """Return what of JSON a field of an SDK may be."""
    found: set[type] = set()
    for kind in flat(annotation):
        origin = typing.get_origin(kind) or kind
        if origin is typing.Literal:
            found |= {type(value) for value in typing.get_args(kind)}
        elif isinstance(origin, type) and issubclass(origin, BaseModel):
            found.add(dict)
        else:
            found.add({float: float, object: object}.get(origin, origin))
    return found - {type(None)}


def required(model: type[BaseModel], *, but: tuple[str, ...] = ()) -> dict[str, set[type]]:
    fields = model.model_fields.items()
    return {name: plain(field.annotation) for name, field in fields if field.is_required() and name not in but}


def ours(shape: shapes.Shape) -> dict[str, set[type]]:
    """Return the same of one of our tables."""
    return {name: set(flat(kind)) for name, kind in shape.items()}


def same(shape: shapes.Shape, model: type[BaseModel], *, but: tuple[str, ...] = ()) -> None:
    """Compare both; a number of an SDK's may be whole in JSON."""
    mine, theirs = ours(shape), required(model, but=but)
    assert set(mine) == set(theirs)
    for name, kinds in theirs.items():
        assert mine[name] == kinds | ({int} if float in kinds else set()), name


@pytest.mark.parametrize(
    ("shape", "model"),
    [
        (shapes.RESPONSE, openai_responses.Response),
        (shapes.USAGE, ResponseUsage),
        (shapes.MESSAGE_ITEM, openai_responses.ResponseOutputMessage),
        (shapes.OUTPUT_TEXT, openai_responses.ResponseOutputText),
        (shapes.FUNCTION_CALL, openai_responses.ResponseFunctionToolCall),
        (shapes.CUSTOM_CALL, openai_responses.ResponseCustomToolCall),
        (shapes.PATCH_CALL, openai_responses.ResponseApplyPatchToolCall),
        (shapes.REASONING_ITEM, openai_responses.ResponseReasoningItem),
        (shapes.ITEM_LIST, openai_responses.ResponseItemList),
        (shapes.ITEM_LIST, ConversationItemList),
        (shapes.COMPACTION, openai_responses.CompactedResponse),
        (shapes.MODEL, Model),
        (shapes.CHAT, ChatCompletion),
        (shapes.CHOICE, Choice),
        (shapes.CHUNK, ChatCompletionChunk),
        (shapes.CHUNK_CHOICE, ChunkChoice),
        (shapes.CHAT_USAGE, CompletionUsage),
        (shapes.MESSAGE, anthropic_types.Message),
        (shapes.MESSAGE_USAGE, anthropic_types.Usage),
    ],
)
def test_a_table_requires_what_its_type_requires(shape: shapes.Shape, model: type[BaseModel]) -> None:
    same(shape, model)


@pytest.mark.parametrize(
    ("events", "kind", "alone"),
    [
        (shapes.EVENTS, openai_responses.ResponseStreamEvent, set()),
        (shapes.MESSAGE_EVENTS, anthropic_types.RawMessageStreamEvent, {"ping", "error"}),  # the SDK's own affair
    ],
    ids=["openai", "anthropic"],
)
def test_events_are_those_of_the_sdk(events: dict[str, shapes.Shape], kind: Any, alone: set[str]) -> None:
    theirs = {typing.get_args(model.model_fields["type"].annotation)[0]: model for model in flat(kind)}
    assert (set(events) - set(theirs), set(theirs) - set(events)) == (alone, set())
    for name, model in theirs.items():
        # Of an error OpenAI's SDK requires fields that may be null, too.
        same(events[name], model, but=("type", "annotation"))
