"""`Toolbox`: the tools of this server that one response has, and which of its calls goes to which."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.formats.base import ToolNamespace
from engine.grammar import CallRule
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.offers import ApprovedCall, Offer, OfferedTool
from responses_app.protocol.response.inputs import Offered
from responses_app.tools.base import BaseTool, ToolUse

MAX_OUTPUT_BYTES = 64 * 1024  # where nothing else is set


@dataclass(frozen=True, slots=True)
class Entry:
    """One of a request's `tools`. `offer` is None until its server has listed what it has."""

    tool: BaseTool
    use: ToolUse
    offer: Offer | None

    @property
    def server(self) -> str:
        """The label of its server."""
        return str(self.use.declared.get("server_label") or "")


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Immutable. `entries` are the request's tools that can be had here, in the order in which it declares them.

    `approved` are calls that the user has approved; `states` is what tools left in the chain before, by the type of
    their items.

    Of what one call gives back the model reads `max_output_bytes` of UTF-8.
    """

    entries: tuple[Entry, ...] = ()
    approved: Sequence[ApprovedCall] = ()
    states: Mapping[str, JsonObject] = field(default_factory=dict)
    max_output_bytes: int = MAX_OUTPUT_BYTES

    @property
    def namespaces(self) -> tuple[ToolNamespace, ...]:
        """What the model is told."""
        return tuple(offer.namespace for offer in self._offers() if offer.tools)

    @property
    def is_pending(self) -> bool:
        """Whether there is a server that has not listed its tools yet."""
        return any(entry.offer is None for entry in self.entries)

    @property
    def offered(self) -> Offered | None:
        """What the machine is told; None for nothing."""
        if not self.entries and not self.states:
            return None
        tools = [tool for offer in self._offers() for tool in offer.tools]
        pending = [entry.server for entry in self.entries if entry.offer is None]
        return Offered(tools, pending, self.approved, self.states)

    def rules(self) -> Iterator[tuple[OfferedTool, CallRule]]:
        """Yield the tools, and what the grammar of a turn knows of them."""
        for offer in self._offers():
            yield from zip(offer.tools, offer.rules(), strict=True)

    def entry_of(self, name: str) -> Entry | None:
        """Return the entry whose tool the model calls by this name; None where no entry offers it."""
        for entry in self.entries:
            if entry.offer is not None and any(tool.name == name for tool in entry.offer.tools):
                return entry
        return None

    def server(self, label: str) -> Entry:
        """Return the entry of a server, which is there."""
        return next(entry for entry in self.entries if entry.server == label)

    def with_offer(self, label: str, offer: Offer) -> "Toolbox":
        """Return it with what a server has listed."""
        return replace(
            self,
            entries=tuple(
                replace(entry, offer=offer) if entry.server == label and entry.offer is None else entry
                for entry in self.entries
            ),
        )

    def _offers(self) -> Iterator[Offer]:
        return (entry.offer for entry in self.entries if entry.offer is not None)


NO_TOOLS = Toolbox()
