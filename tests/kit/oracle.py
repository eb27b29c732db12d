"""The official `openai` types as oracle: is this what OpenAI's SDK calls an event, a response, a body?

Two traps. The SDK's own parsing (`construct`) validates nothing at all; and its models allow fields they do not know,
so validation finds what is missing or of the wrong type, while a misspelt field passes: `unknown_fields` finds those.
Importing the types costs 0.9 s, so nothing but tests does it.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, get_args, get_origin

import pydantic
from openai.types.conversations import Conversation, ConversationItem, ConversationItemList
from openai.types.responses import (
    CompactedResponse,
    Response,
    ResponseItem,
    ResponseItemList,
    ResponseOutputMessage,
    ResponseStreamEvent,
)

EXTENSIONS = frozenset(  # what this server adds to OpenAI's objects on purpose
    (
        "name",  # of response.function_call_arguments.done: in OpenAI's documentation, not in 3.54.0's types
        "outputs",  # of response.code_interpreter_call.completed, where an include asks for them
        "response.store",  # OpenAI sends these three as well; only its types leave them out
        "response.presence_penalty",
        "response.frequency_penalty",
        "response.usage.output_tokens_details.tool_output_tokens",
        "item.error",  # of a web_search_call that failed: OpenAI's has its status only
        "response.output.error",
        "item.status",  # of a custom tool's call: OpenAI sends it, and its types of input lists have it
        "response.output.status",
        "item.tools.tools",  # of an MCP server's tools that a search for tools has found: what the model reads of them
        "response.output.tools.tools",
        "item.caller",  # of an mcp_call that a program has made: OpenAI's functions have it
        "response.output.caller",
        "conversation.title",
        "conversation.status",
        "item.created_at",
    )
)


# What is not set is absent in items: some SDKs refuse null there, and lose the whole answer. By the type of an item,
# where OpenAI's TypeScript types have `name: T | null` (not `name?: T | null`): those fields are always there.
NULL_UNLESS_SET = {
    "code_interpreter_call": {"code", "outputs"},
    "image_generation_call": {"result", "error.code", "error.param"},
    "shell_call": {"environment", "action.timeout_ms", "action.max_output_length"},
    "shell_call_output": {"max_output_length"},
    "tool_search_call": {"call_id"},
    "tool_search_output": {"call_id"},
}
_NOT_OURS = ("arguments", "tools")  # fields of items whose JSON is the model's, or as a request has declared it


def validate_event(event: Mapping[str, object]) -> pydantic.BaseModel:
    """Validate an event as the client reads it against OpenAI's type of that name, strictly: "1" is not a number.

    Raises `AssertionError` for a type that OpenAI does not have, a `pydantic.ValidationError` for a missing or
    ill-typed field, and `AssertionError` for a field that neither OpenAI nor `EXTENSIONS` knows, or that is null in an
    item without need (`NULL_UNLESS_SET`).
    """
    kind = event.get("type")
    adapters = _event_adapters()
    assert kind in adapters, f"OpenAI has no event {kind!r}"
    model = adapters[kind].validate_python(event, strict=True)
    _assert_known(model)
    _assert_no_nulls(event.get("item"))
    if isinstance(response := event.get("response"), dict):
        _assert_no_nulls(*response["output"])
    return model


def validate_response(response: Mapping[str, object]) -> Response:
    """Validate a response object; raises as `validate_event` does."""
    output = response["output"]
    assert isinstance(output, list)
    _assert_no_nulls(*output)
    model = _response_adapter().validate_python(response, strict=True)
    _assert_known(model, "response")
    return model


def validate_compacted(compacted: Mapping[str, object]) -> CompactedResponse:
    """Validate what a compaction is answered with; raises as `validate_event` does.

    Its output begins with the user's messages, which the SDK's type of it does not have.
    """
    output = compacted["output"]
    assert isinstance(output, list)
    for item in output[:-1]:
        assert item["role"] == "user", item
        _validate_response_item(item)
    model = CompactedResponse.model_validate({**compacted, "output": output[-1:]}, strict=True)
    _assert_known(model, "response")
    return model


def validate_conversation(conversation: Mapping[str, object]) -> Conversation:
    """Validate a conversation object; raises as `validate_event` does."""
    model = Conversation.model_validate(conversation, strict=True)
    _assert_known(model, "conversation")
    return model


def validate_conversation_item(item: Mapping[str, object]) -> pydantic.BaseModel:
    """Validate an item of a conversation against OpenAI's type of that name; raises as `validate_event` does."""
    adapters = _item_adapters()
    kind = item.get("type")
    assert kind in adapters, f"OpenAI has no item {kind!r} in conversations"
    model = adapters[kind].validate_python(item, strict=True)
    _assert_known(model, "item")
    return model


def validate_conversation_items(page: Mapping[str, object]) -> list[pydantic.BaseModel]:
    """Validate a list of a conversation's items; raises as `validate_event` does."""
    assert set(page) == set(ConversationItemList.model_fields), page
    ConversationItemList.model_validate({**page, "data": []}, strict=True)
    data = page["data"]
    assert isinstance(data, list)
    assert (page["first_id"], page["last_id"]) == ((data[0]["id"], data[-1]["id"]) if data else ("", "")), page
    return [validate_conversation_item(item) for item in data]


def validate_response_items(page: Mapping[str, object]) -> list[pydantic.BaseModel]:
    """Validate a list of what a response was asked; raises as `validate_event` does."""
    assert set(page) == set(ResponseItemList.model_fields), page
    ResponseItemList.model_validate({**page, "data": []}, strict=True)
    data = page["data"]
    assert isinstance(data, list)
    assert (page["first_id"], page["last_id"]) == ((data[0]["id"], data[-1]["id"]) if data else ("", "")), page
    return [_validate_response_item(item) for item in data]


def _validate_response_item(item: Mapping[str, object]) -> pydantic.BaseModel:
    kinds = _response_item_adapters()
    kind = item["type"], item.get("role") == "assistant" and item["type"] == "message"
    assert kind in kinds, f"OpenAI has no item {kind!r} in responses"
    model = kinds[kind].validate_python(item, strict=True)
    _assert_known(model, "item")
    return model


def unknown_fields(model: object, path: str = "") -> Iterator[str]:
    """Yield the dotted paths of fields that OpenAI's models let pass without knowing them."""
    if isinstance(model, pydantic.BaseModel):
        for name in model.model_extra or ():
            yield f"{path}.{name}".lstrip(".")
        for name in type(model).model_fields:
            yield from unknown_fields(getattr(model, name), f"{path}.{name}".lstrip("."))
    elif isinstance(model, list):
        for value in model:
            yield from unknown_fields(value, path)


def nulls_in(item: Mapping[str, object]) -> list[str]:
    """Return the dotted paths of an item's fields that are null, but for those of `NULL_UNLESS_SET`."""
    return [path for path in _nulls(item, "") if path not in NULL_UNLESS_SET.get(str(item["type"]), ())]


def _nulls(value: object, path: str) -> Iterator[str]:
    if value is None:
        yield path
    for each in value if isinstance(value, list) else ():
        yield from _nulls(each, path)
    for name, each in value.items() if isinstance(value, dict) else ():
        if name not in _NOT_OURS:
            yield from _nulls(each, f"{path}.{name}".lstrip("."))


def _assert_no_nulls(*items: object) -> None:
    for item in items:
        if isinstance(item, dict):
            nulls = nulls_in(item)
            assert not nulls, f"these are null in {item['type']}: {nulls}"


def _assert_known(model: pydantic.BaseModel, path: str = "") -> None:
    unknown = [each for each in unknown_fields(model, path) if each not in EXTENSIONS]
    assert not unknown, f"OpenAI does not know {unknown}"


@lru_cache(maxsize=1)
def _event_adapters() -> "dict[object, pydantic.TypeAdapter[pydantic.BaseModel]]":
    union = get_args(ResponseStreamEvent)[0] if get_origin(ResponseStreamEvent) is Annotated else ResponseStreamEvent
    by_type = {get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(union)}
    return {kind: pydantic.TypeAdapter(model) for kind, model in by_type.items()}


@lru_cache(maxsize=1)
def _item_adapters() -> "dict[object, pydantic.TypeAdapter[pydantic.BaseModel]]":
    union = get_args(ConversationItem)[0] if get_origin(ConversationItem) is Annotated else ConversationItem
    by_type = {get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(union)}
    return {kind: pydantic.TypeAdapter(model) for kind, model in by_type.items()}


@lru_cache(maxsize=1)
def _response_item_adapters() -> "dict[tuple[object, object], pydantic.TypeAdapter[pydantic.BaseModel]]":
    """Return the types of a response's items, by their `type`, and whether they are the assistant's messages."""
    union = get_args(ResponseItem)[0] if get_origin(ResponseItem) is Annotated else ResponseItem
    models = get_args(union)
    kinds = [(get_args(m.model_fields["type"].annotation)[0], m is ResponseOutputMessage) for m in models]
    return {kind: pydantic.TypeAdapter(model) for kind, model in zip(kinds, models, strict=True)}


@lru_cache(maxsize=1)
def _response_adapter() -> "pydantic.TypeAdapter[Response]":
    return pydantic.TypeAdapter(Response)
