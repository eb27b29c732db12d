"""Kept items → items as the API gives them back: with the fields that OpenAI's types require and clients leave out."""

from collections.abc import Callable, Collection, Iterable, Mapping

from responses_app.protocol.errors import JsonObject

SCREENSHOTS = "computer_call_output.output.image_url"  # what `include` calls them
INPUT_IMAGES = "message.input_image.image_url"
_WITH_STATUS = (
    "message function_call function_call_output file_search_call web_search_call image_generation_call computer_call "
    "computer_call_output program_output code_interpreter_call local_shell_call shell_call shell_call_output "
    "apply_patch_call apply_patch_call_output".split()
)
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    **{kind: {"status": "completed"} for kind in _WITH_STATUS},
    **{kind: {"status": "completed", "execution": "client"} for kind in ("tool_search_call", "tool_search_output")},
    "reasoning": {"summary": []},
}
_INPUT_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    kind: {"status": "completed"} for kind in ("custom_tool_call", "custom_tool_call_output")
}
_PART_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "output_text": {"annotations": [], "logprobs": []},
    "input_image": {"detail": "auto"},
    "computer_screenshot": {"detail": "auto"},
}


def input_item_resource(item: JsonObject) -> JsonObject:
    """Return an item as OpenAI's types have it in the list of a response's input: more of them have a status there."""
    return _completed(item_resource(item), _INPUT_DEFAULTS.get(str(item.get("type")), {}))


def item_resource(item: JsonObject) -> JsonObject:
    """Return an item, whose id it has already, as OpenAI's types have it; what they have stays as it came."""
    whole = _completed(item, _DEFAULTS.get(str(item.get("type")), {}))
    if whole.get("type") == "function_call":
        whole.pop("output", None)  # some clients put a call's output into the call; OpenAI's types have none there
    for name in ("content", "output"):
        parts = whole.get(name)
        if isinstance(parts, list):
            whole[name] = [_part(part) for part in parts]
    return whole


def image_urls(items: Iterable[JsonObject]) -> list[str]:
    """Return the URLs of the images in messages, in their order; one that is a file has none."""
    contents = (item.get("content") for item in items if item.get("type", "message") == "message")
    parts = (part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict))
    urls = (part.get("image_url") for part in parts if part.get("type") == "input_image")
    return [url for url in urls if isinstance(url, str)]


def with_included(item: JsonObject, include: Collection[str]) -> JsonObject:
    """Return an item of a list without what only an `include` gives: large or private, and not for everybody's list."""
    trim = _EXTRAS.get(str(item.get("type")))
    return item if trim is None else trim(item, include)


def _trimmed_message(item: JsonObject, include: Collection[str]) -> JsonObject:
    parts = item.get("content")
    if not isinstance(parts, list):
        return item
    left_out = {kind: gone for kind, (name, gone) in _EXTRAS_OF_PARTS.items() if name not in include}
    return {**item, "content": [_changed(part, left_out) for part in parts]}


def _changed(part: object, left_out: Mapping[str, Mapping[str, object]]) -> object:
    gone = left_out.get(str(part.get("type"))) if isinstance(part, dict) else None
    return {**part, **gone} if isinstance(part, dict) and gone and gone.keys() <= part.keys() else part


def _trimmed_reasoning(item: JsonObject, include: Collection[str]) -> JsonObject:
    if "reasoning.encrypted_content" in include:
        return item
    return {name: value for name, value in item.items() if name != "encrypted_content"}


def _trimmed_search(item: JsonObject, include: Collection[str]) -> JsonObject:
    action = item.get("action")
    if "web_search_call.action.sources" in include or not isinstance(action, dict):
        return item
    return {**item, "action": {name: value for name, value in action.items() if name != "sources"}}


def _trimmed_screenshot(item: JsonObject, include: Collection[str]) -> JsonObject:
    shown = item.get("output")
    if SCREENSHOTS in include or not isinstance(shown, dict) or "image_url" not in shown:
        return item
    return {**item, "output": {**shown, "image_url": None}}


def _trimmed_field(name: str) -> Callable[[JsonObject, Collection[str]], JsonObject]:
    def trim(item: JsonObject, include: Collection[str]) -> JsonObject:
        return item if f"{item['type']}.{name}" in include or name not in item else {**item, name: None}

    return trim


_EXTRAS: Mapping[str, Callable[[JsonObject, Collection[str]], JsonObject]] = {
    "message": _trimmed_message,
    "reasoning": _trimmed_reasoning,
    "web_search_call": _trimmed_search,
    "computer_call_output": _trimmed_screenshot,
    "code_interpreter_call": _trimmed_field("outputs"),
    "file_search_call": _trimmed_field("results"),
}
_EXTRAS_OF_PARTS: Mapping[str, tuple[str, Mapping[str, object]]] = {  # part → its `include`, and what stands without
    "input_image": (INPUT_IMAGES, {"image_url": None}),
    "output_text": ("message.output_text.logprobs", {"logprobs": []}),
}


def _part(part: object) -> object:
    return part_resource(part) if isinstance(part, dict) else part


def part_resource(part: JsonObject) -> JsonObject:
    """Return a part of an item as OpenAI's types have it."""
    return _completed(part, _PART_DEFAULTS.get(str(part.get("type")), {}))


def _completed(value: JsonObject, defaults: Mapping[str, object]) -> JsonObject:
    lacking = {name: default for name, default in defaults.items() if value.get(name) in (None, "")}
    return {**value, **lacking}
