"""The scopes that a request needs by what its body names; by its method and path `routes` says it.

Whoever names a file, a container, a vector store, a conversation or an item gets at its content, so a key needs the
scope of that resource. A response that is continued, and an item of one, are of the resource that the request is for,
and need no other. Citations in a history name nothing: they tell where a text came from. A call of the code interpreter
in it names its container: code may go on there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from responses_app.protocol.api_keys import Area, missing_scope
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files.skills import skills_in
from responses_app.protocol.requests.requests import CreateRequest

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_MEDIA = ("input_image", "input_file", "computer_screenshot")  # parts whose `file_id` says where their content is


class Named(NamedTuple):
    """A resource named in a request, with the scope it needs."""

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
            # The id may be that of a response's item or of a conversation's: the key needs both.
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


def skills_named(skills: Iterable[JsonObject], *, at: str) -> Iterator[Named]:
    """Yield what a list of skills names: those that it brings are nobody's."""
    if any(each.get("type") == "skill_reference" for each in skills):
        yield Named(Area.SKILLS, at)


def _named_by_part(part: object, at: str) -> Iterator[Named]:
    if isinstance(part, dict) and part.get("type") in _MEDIA and part.get("file_id"):
        yield Named(Area.FILES, f"{at}.file_id")


def _named_by_tool(tool: Mapping[str, object], at: str, *, runs: bool) -> Iterator[Named]:
    container, mask = tool.get("container"), tool.get("input_image_mask")
    field, skills = skills_in(tool)
    yield from skills_named(skills, at=f"{at}.{field}.skills")
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


def check_named(scopes: Sequence[str], named: Iterable[Named]) -> None:
    """Raise `ApiError` (403) where a key with these scopes, if it has any, may not use the resources that are named.

    The error is of the first field that names such a resource, with all scopes that this field needs.
    """
    if not scopes:
        return
    needed = [(each.param, each.area.scope(writes=each.writes)) for each in named]
    missing = [(param, scope) for param, scope in needed if scope not in scopes]
    if missing:
        first, _ = missing[0]
        raise missing_scope(*(scope for param, scope in missing if param == first), param=first)
