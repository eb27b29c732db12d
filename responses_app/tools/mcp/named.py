"""`NamedTool`: a tool of one of the operator's MCP servers that a setting has do the work of a tool of ours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine import orjson
from responses_app.protocol.errors import JsonObject
from responses_app.tools.base import BaseTool, ToolCall, ToolResult, ToolUse


class NoSuchTool(Exception):
    """The server lists no such tool; the text says which was looked for, and which there are."""


class NamedTool:
    """The tool of a setting like `brave` or `brave.brave_web_search`: a server by its label, or one tool of it.

    Of a server it is the first tool that has one of `words` in its name, the likeliest word first; `about` says what
    that tool does. `mcp` calls the servers, and is another's to close.
    """

    def __init__(self, mcp: BaseTool, named: str, *, words: Sequence[str], about: str) -> None:
        self._mcp = mcp
        self.label, _, self._tool = named.partition(".")
        self._words = words
        self._about = about

    async def call(
        self,
        use: ToolUse,
        arguments: Callable[[JsonObject], JsonObject],
        *,
        item_id: str = "",
        report: Callable[[JsonObject], None] = lambda _: None,
    ) -> ToolResult:
        """Call it with what `arguments` makes of its declaration. Raises `NoSuchTool` and `ToolFailed`."""
        declared: JsonObject = {"type": "mcp", "server_label": self.label, "server_url": None}
        # Nothing of the request's goes there: the server is the operator's.
        use = replace(use, declared=declared, private={}, items=())
        tools = (await self._mcp.list_tools(use)).tools
        names = [str(tool.get("name")) for tool in tools]
        # The likeliest word first, then the order of the server's list.
        likely = (name for word in self._words for name in names if word in name.lower())
        name = self._tool or next(likely, "")
        if name not in names:
            raise NoSuchTool(f"no tool {name or self._about}. It has: {', '.join(names)[:500] or 'none'}.")
        tool = tools[names.index(name)]
        call = ToolCall(
            use=use,
            name=f"{self.label}.{tool['name']}",
            tool=str(tool["name"]),
            arguments=orjson.dumps(arguments(tool)).decode(),
            item_id=item_id,
            report=report,
        )
        return await self._mcp.call(call)


def parameters_of(tool: JsonObject) -> Mapping[str, Any]:
    """Return the parameters that a tool declares, by their names; a server may declare anything."""
    schema = tool.get("input_schema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def parameter_of(tool: JsonObject, likely: Sequence[str]) -> str:
    """Return the parameter that takes a text: the first of the likely names, else the first text that there is."""
    known = parameters_of(tool)
    texts = (name for name, each in known.items() if isinstance(each, dict) and each.get("type") == "string")
    return next((name for name in likely if name in known), None) or next(texts, likely[0])
