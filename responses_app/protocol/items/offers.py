"""What of this server's own tools a response may use: what the model is told, and which item each call becomes.

    request's `tools` ──> a tool's `Offer` ──> the prompt (namespaces), the grammar (contents)
                                          └──> the machine (`OfferedTool`, as an input: it is logged)

The machine does not know the tools, only what was offered of them. So a response that is made again from its log gets
the same items, whether its tools are still there or not.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from engine.formats.base import ToolNamespace
from engine.grammar import AnyText, CallRule, Content
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.items import MAX_NAME

_NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")
UNKNOWN = "unknown"  # stands for the name of a tool that is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool that the server runs when the model calls `name`. `item` is the type of the item that a call becomes.

    `server` and `tool` name a tool of an MCP server; they are empty for other tools. `asks`: the user is to approve
    each call. `repeatable`: a call that was under way when its worker died may be made again. `fields` are fields that
    the item has from its beginning.
    """

    name: str
    item: str
    server: str = ""
    tool: str = ""
    asks: bool = False
    repeatable: bool = False
    fields: JsonObject = field(default_factory=dict)

    def as_json(self) -> JsonObject:
        """Return it as it is logged: without the fields that are empty or false."""
        return {name: value for name, value in asdict(self).items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovedCall:
    """A call of an MCP server's tool that the model asked for in an earlier response, and that the user approves."""

    request_id: str
    server: str
    tool: str
    arguments: str

    @property
    def name(self) -> str:
        """What the model calls."""
        return mcp_name(self.server, self.tool)


@dataclass(frozen=True, slots=True)
class Offer:
    """What one of a request's `tools` gives the model. `contents` say what may stand in calls; others take any text."""

    namespace: ToolNamespace
    tools: Sequence[OfferedTool]
    contents: Mapping[str, Content] = field(default_factory=dict)

    def rules(self) -> Iterator[CallRule]:
        """Yield what the grammar of a turn knows of the calls."""
        for tool in self.tools:
            yield CallRule(tool.name, self.contents.get(tool.name, AnyText()), hosted=True)


def mcp_name(server: str, tool: str) -> str:
    """Return what the model calls for a tool of an MCP server."""
    return cleaned_name(f"{server or 'mcp'}.{tool or UNKNOWN}")


def cleaned_name(name: str) -> str:
    """Return the name of a tool without what a model's format may read as something else."""
    return _NO_NAME.sub("_", name[:MAX_NAME]) or UNKNOWN
