"""Calls of tools that a server ran, as a transcript shows them: what was asked, and beside it what it gave back.

Items may come from clients, so nothing is taken for granted about their shape.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class ServerCall(NamedTuple):
    """`gave` is None where the item does not say what came of the call. `pictures` are data URLs beside it."""

    title: str
    asked: object
    gave: object | None
    pictures: Sequence[str] = ()


def _search(item: Any) -> ServerCall:
    given = item.get("action")
    action = dict(given) if isinstance(given, dict) else {}
    sources = action.pop("sources", None)
    urls = [each.get("url") for each in sources if isinstance(each, dict)] if isinstance(sources, list) else None
    kind = str(action.pop("type", "")).replace("_", " ")
    asked = next((action[name] for name in ("query", "pattern", "url") if action.get(name)), None)
    where = f"\n{action['url']}" if action.get("pattern") and action.get("url") else ""
    return ServerCall(f"web search: {kind}", f"{asked or ''}{where}", item.get("error") or urls)


def _mcp(item: Any) -> ServerCall:
    title = ".".join(str(item[name]) for name in ("server_label", "name") if item.get(name))
    return ServerCall(title, item.get("arguments"), item.get("error") or item.get("output"))


def _code(item: Any) -> ServerCall:
    outputs = item.get("outputs")
    if not isinstance(outputs, list):
        return ServerCall("python", item.get("code"), item.get("error"))
    pictures = [each["url"] for each in outputs if _is_drawn(each)]
    rest = [each for each in outputs if not _is_drawn(each)]
    logs = [each.get("logs") if isinstance(each, dict) and "logs" in each else each for each in rest]
    gave = "\n".join(map(str, logs)) if all(isinstance(each, str) for each in logs) else rest
    return ServerCall("python", item.get("code"), item.get("error") or gave, pictures)


def _is_drawn(output: Any) -> bool:
    return isinstance(output, dict) and output.get("type") == "image" and isinstance(output.get("url"), str)


def _image(item: Any) -> ServerCall:
    made = item.get("result")
    kind = item.get("output_format") if item.get("output_format") in ("png", "jpeg", "webp") else "png"
    pictures = [f"data:image/{kind};base64,{made}"] if isinstance(made, str) else []
    title = f"image: {item.get('action') or 'generate'}"
    return ServerCall(title, item.get("revised_prompt"), item.get("error"), pictures)


READERS: Mapping[str, Callable[[Any], ServerCall]] = {
    "web_search_call": _search,
    "mcp_call": _mcp,
    "code_interpreter_call": _code,
    "image_generation_call": _image,
}
