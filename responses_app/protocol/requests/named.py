"""What requests name that is of another resource: files, containers, vector stores, conversations and items.

Whoever names a thing gets at what is in it, so a key needs the thing's own scope (`auth.scopes.check_named`). What
continues a response, and an item of one, is of the resource that the request is for, and needs no other. Citations in
a history name nothing: they tell where a text came from. A call of the code interpreter in it names its container: code
may go on there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.requests import CreateRequest

_MEDIA = ("input_image", "input_file", "computer_screenshot")  # parts whose `file_id` says where their content is


class Named(NamedTuple):
    """A thing that a request names, by what a key must be made for to use it."""

    area: Area
    param: str  # where it stands in the request
    writes: bool = False  # the request changes it, too


def named_by(request: CreateRequest, *, runs: bool) -> Iterator[Named]:
    """Yield what a create names; one that only counts (`runs` is False) changes nothing of it."""
    if request.conversation is not None:
        yield from _used(Area.CONVERSATIONS, "conversation", writes=runs)
    yield from named_in_items(request.input_json, at="input")
    if any(tool["type"] == "code_interpreter" for tool in request.tools_json):
        for index, item in enumerate(request.input_json):
            if item.get("type") == "code_interpreter_call" and item.get("container_id"):
                yield from _used(Area.CONTAINERS, f"input[{index}].container_id", writes=runs)
    for index, tool in enumerate(request.tools_json):
        yield from _named_by_tool(tool, f"tools[{index}]", runs=runs)


def named_in_items(items: Sequence[JsonObject], *, at: str) -> Iterator[Named]:
    """Yield the files that items name; `at` is where they stand in the request."""
    for index, item in enumerate(items):
        for field in ("content", "output"):
            yield from named_in_parts(item.get(field), at=f"{at}[{index}].{field}")


def named_by_conversation(items: Sequence[JsonObject]) -> Iterator[Named]:
    """Yield what the items of a conversation name: one that is named by its id is copied, whosever it is."""
    yield from named_in_items(items, at="items")
    for index, item in enumerate(items):
        if item["type"] == "item_reference":
            yield Named(Area.RESPONSES, f"items[{index}].id")
            yield Named(Area.CONVERSATIONS, f"items[{index}].id")


def named_in_parts(parts: object, *, at: str) -> Iterator[Named]:
    """Yield the files that a content, or the output of a call, names: an array of parts, or one of them."""
    if isinstance(parts, list):
        for index, part in enumerate(parts):
            yield from _named_by_part(part, f"{at}[{index}]")
    else:
        yield from _named_by_part(parts, at)


def files_named(file_ids: Iterable[str] | None, *, at: str) -> Iterator[Named]:
    """Yield what a list of the ids of files names."""
    if file_ids:
        yield Named(Area.FILES, at)


def _named_by_part(part: object, at: str) -> Iterator[Named]:
    if isinstance(part, dict) and part.get("type") in _MEDIA and part.get("file_id"):
        yield Named(Area.FILES, f"{at}.file_id")


def _named_by_tool(tool: Mapping[str, object], at: str, *, runs: bool) -> Iterator[Named]:
    container, mask = tool.get("container"), tool.get("input_image_mask")
    match tool["type"]:
        case "code_interpreter" if isinstance(container, str):
            yield from _used(Area.CONTAINERS, f"{at}.container", writes=runs)
        case "code_interpreter" if isinstance(container, dict):
            yield from files_named(container.get("file_ids"), at=f"{at}.container.file_ids")
        case "file_search":
            yield Named(Area.VECTOR_STORES, f"{at}.vector_store_ids")
        case "image_generation" if isinstance(mask, dict) and mask.get("file_id"):
            yield Named(Area.FILES, f"{at}.input_image_mask.file_id")


def _used(area: Area, param: str, *, writes: bool) -> Iterator[Named]:
    """Yield what a response reads, and changes if it `writes`."""
    yield Named(area, param)
    if writes:
        yield Named(area, param, writes=True)
