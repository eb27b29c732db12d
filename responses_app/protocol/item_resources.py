"""Kept items → items as the API gives them back: with the fields that OpenAI's types require and clients leave out."""

from collections.abc import Mapping

from responses_app.protocol.errors import JsonObject

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


def _part(part: object) -> object:
    return _completed(part, _PART_DEFAULTS.get(str(part.get("type")), {})) if isinstance(part, dict) else part


def _completed(value: JsonObject, defaults: Mapping[str, object]) -> JsonObject:
    lacking = {name: default for name, default in defaults.items() if value.get(name) is None}
    return {**value, **lacking}
