"""What was decided before a run starts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.formats.base import ModelFormat, RenderedMessage
from engine.grammar import TurnGrammar
from engine.types import GenerationRequest, SamplingOptions
from responses_app.protocol.chain import ChainLink
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.prompt import PromptWriter
from responses_app.protocol.requests import CreateRequest
from responses_app.protocol.turn_rules import RulesOfTurns
from responses_app.stores.base import ConversationRecord
from responses_app.tools.base import BaseTool

PROJECT = "default"  # whose everything is, until there are keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a request came from: for ownership and for the log."""

    transport: str
    project: str
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """What happens before a response answers: its first turn sums up what came before.

    `kept` follows the summary as it was. `sampling` is the answer's; None where the compaction is all that is wanted.
    `writer` writes the prompt of what follows. `seal` makes what the client gets of it. `stands_for` are digests of the
    user's messages that the client gets beside it.
    """

    kept: Sequence[RenderedMessage]
    sampling: SamplingOptions | None
    writer: PromptWriter
    seal: Callable[[bytes], str]
    stands_for: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Everything that was decided before a run starts.

    `format` is how its model is written to. `link` is the chain with the request's own input at its end,
    `input_messages` what it was rendered to. `context_items` are the items they were rendered from: those of the
    conversation that the chain does not hold yet, and the request's own, which are `input_items` (each with an id).
    `generation` is the first turn's. `created_at` is in Unix seconds. `omitted` counts what the model cannot read of
    the request. `late_tools` were declared in the conversation, not in the request. The engine holds the model to
    `rules`, and `grammar` is that of its first turn. Text is held back for up to `delta_seconds`, to make fewer deltas.
    `shown` are the messages that the model reads in its own words, where the request asks to see them.
    """

    response_id: str
    created_at: float
    request: CreateRequest
    origin: Origin
    format: ModelFormat
    link: ChainLink
    parent: ChainLink | None
    conversation: ConversationRecord | None
    input_messages: Sequence[RenderedMessage]
    context_items: Sequence[JsonObject]
    input_items: Sequence[JsonObject]
    generation: GenerationRequest
    stored: bool
    omitted: int = 0
    tools: Mapping[str, BaseTool] = field(default_factory=dict)  # that this server runs, by their names
    late_tools: Sequence[JsonObject] = ()
    rules: RulesOfTurns | None = None
    grammar: TurnGrammar | None = None
    compaction: CompactionPlan | None = None
    delta_seconds: float = 0.0
    shown: list[JsonObject] | None = None

    @property
    def background(self) -> bool:
        """Whether it outlives its readers."""
        return bool(self.request.background)

    @property
    def stored_parent(self) -> str:
        """The stored response it continues by its id, which the store must still know; "" for none."""
        named = self.request.previous_response_id
        return named if named and self.parent and self.parent.stored else ""

    @property
    def resumable(self) -> bool:
        """Whether its events are kept, so that its stream can be picked up again."""
        return self.stored and (self.background or self.origin.transport in ("sse", "websocket"))
