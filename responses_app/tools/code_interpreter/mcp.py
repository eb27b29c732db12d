"""The code interpreter by a tool of an MCP server: SANDBOX_MCP names its label in MCP_SERVERS, or `label.tool`.

For machines on which no sandbox holds. Such a server has no containers of ours: clients cannot name one, and whether
variables last from one call to the next is the server's to decide.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import orjson

from engine.formats.base import ToolNamespace
from responses_app.protocol.errors import JsonObject, container_not_found
from responses_app.protocol.items.offers import Offer, OfferedTool
from responses_app.tools.base import BaseTool, ToolCall, ToolFailed, ToolResult, ToolUse
from responses_app.tools.code_interpreter.tool import ITEM, OUTPUTS, code_of

_ABOUT = (
    "Use this tool to execute Python code in your chain of thought. The code will not be shown to the user. This tool "
    "should be used for internal reasoning, but not for code that is intended to be visible to the user (e.g. when "
    "creating plots, tables, or files).\n"
    "When you send a message containing Python code to python, it will be executed, and python will respond with what "
    "it printed. Variables and files of earlier calls may be gone: make each call whole, and print what you want to "
    "see."
)
_RUNS_CODE = ("python", "code", "execute", "run")  # in the name of a tool that runs it
_CODES = ("code", "python_code", "python", "script", "source", "command", "input")
_NOTHING = "[no output: print what you want to see]"


class McpInterpreter(BaseTool):
    """Runs code by one of the operator's MCP servers; `mcp` is what calls those, and another's to close."""

    kinds: ClassVar = ("code_interpreter",)

    def __init__(self, mcp: BaseTool, wanted: str) -> None:
        self._mcp = mcp
        self._label, _, self._tool = wanted.partition(".")
        self.max_seconds, self.idle_seconds = mcp.max_seconds, mcp.idle_seconds

    async def offer(self, use: ToolUse) -> Offer:
        container = use.declared.get("container")
        if isinstance(container, str):
            raise container_not_found(container, param="tools")
        fields: JsonObject = {"container_id": f"cntr_{use.chain_id.partition('_')[2]}"}
        return Offer(ToolNamespace("python", _ABOUT), [OfferedTool(name="python", item=ITEM, fields=fields)])

    async def call(self, call: ToolCall) -> ToolResult:
        declared: JsonObject = {"type": "mcp", "server_label": self._label, "server_url": None}
        use = replace(call.use, declared=declared, private={}, items=())  # each project has a connection of its own
        try:
            tool = self._chosen(await self._mcp.list_tools(use))
            made = ToolCall(
                use=use,
                name=f"{self._label}.{tool['name']}",
                tool=str(tool["name"]),
                arguments=orjson.dumps({_parameter(tool): code_of(call.arguments)}).decode(),
                item_id=call.item_id,
                report=lambda _: call.report({}),
            )
            result = await self._mcp.call(made)
        except ToolFailed as problem:
            raise ToolFailed(f"the MCP server of SANDBOX_MCP says: {problem}", shown={"outputs": None}) from None
        text = result.text or _NOTHING
        shown: JsonObject = {}
        if OUTPUTS in call.use.include:
            shown["outputs"] = [{"type": "logs", "logs": result.text}] if result.text else []
        return ToolResult(text, shown, result.failed)

    def _chosen(self, tools: Sequence[JsonObject]) -> JsonObject:
        names = [str(tool.get("name")) for tool in tools]
        likely = (name for word in _RUNS_CODE for name in names if word in name.lower())
        wanted = self._tool or next(likely, "")
        if wanted not in names:
            has = ", ".join(names)[:500] or "none"
            raise ToolFailed(f"it has no tool {wanted or 'that runs code'}. It has: {has}.")
        return tools[names.index(wanted)]


def _parameter(tool: JsonObject) -> str:
    """Return the parameter that takes the code."""
    schema = tool.get("input_schema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    known: JsonObject = properties if isinstance(properties, dict) else {}
    named = next((name for name in _CODES if name in known), None)
    texts = (name for name, each in known.items() if isinstance(each, dict) and each.get("type") == "string")
    return named or next(texts, "code")
