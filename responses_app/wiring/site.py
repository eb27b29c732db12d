"""`Site`: everything one process serves with, how it is started, and how it is closed."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from responses_app.auth.door import Door
from responses_app.limits.base import BaseLedger
from responses_app.limits.connections import ConnectionLimit
from responses_app.limits.rates import Rates
from responses_app.observing.traces import Traces
from responses_app.protocol.answer_headers import AnswerHeaders
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.dialects import Dialect, requested_dialect
from responses_app.protocol.fields import note_ignored
from responses_app.protocol.requests.requests import CreateRequest, parse_create
from responses_app.protocol.session.tool_outputs import WAIT, requested_tool_mode
from responses_app.runs.by_id import ResponsesById
from responses_app.runs.draining import Draining
from responses_app.runs.duties.upkeep import Upkeep
from responses_app.runs.log.following import Followers
from responses_app.runs.outputs import GivenOutputs
from responses_app.runs.registry.forgetting import Forgetting
from responses_app.runs.registry.registry import RunRegistry
from responses_app.runs.service import ResponseService
from responses_app.runs.stateless.completion_service import CompletionService
from responses_app.runs.stateless.deciding import DecisionService
from responses_app.runs.stored_chats import StoredChats
from responses_app.settings.conf import Settings
from responses_app.stores.approvals import BaseApprovalStore
from responses_app.stores.base import BaseResponseStore
from responses_app.stores.conversations import BaseConversationStore
from responses_app.stores.files import BaseFileStore
from responses_app.stores.uploads import BaseUploads
from responses_app.tools.base import BaseTool
from responses_app.wiring.embedding_engines import Embeddings
from responses_app.wiring.engines import Engines
from responses_app.wiring.reading import JsonReader
from responses_app.wiring.relay import CANCEL, FOLLOW, FORGET, LOGGED, Relay
from responses_app.wiring.watching import Watch

LAST_WORDS_SECONDS = 1.0  # how long a stop waits for those who read what it stopped
LAST_ROWS_SECONDS = 5.0  # how long behind the grace a stop may ask the database: what is not kept, others take over


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Everything one process serves with."""

    settings: Settings
    engines: Engines
    embeddings: Embeddings
    completions: CompletionService
    decisions: DecisionService
    store: BaseResponseStore
    chats: StoredChats
    conversations: BaseConversationStore
    files: BaseFileStore
    uploads: BaseUploads
    approvals: BaseApprovalStore
    ledger: BaseLedger
    connection_limit: ConnectionLimit
    rates: Rates
    answer_headers: AnswerHeaders
    registry: RunRegistry
    service: ResponseService
    responses: ResponsesById
    outputs: GivenOutputs
    forgetting: Forgetting
    followers: Followers
    upkeep: Upkeep
    relay: Relay
    reader: JsonReader
    token_reader: JsonReader  # of bodies whose `input` may be token ids
    door: Door
    watch: Watch
    draining: Draining
    traces: Traces
    tools: Sequence[BaseTool]
    end_database: Callable[[float], None]  # all that is still asked of it ends within so many seconds
    new_id: Callable[[str], str]

    def dialect(self, header: str | None) -> Dialect:
        """Return the dialect that a request asks for by its header. Raises `ApiError` (400) for one not known."""
        settings = self.settings
        return requested_dialect(header, settings.responses_dialect, usage_per_turn=settings.responses_usage_per_turn)

    def awaits_tools(self, header: str | None, dialect: Dialect) -> bool:
        """Whether a stream waits for the outputs of its client's tools. Raises `ApiError` (400) for an unknown mode.

        Never where a turn has one id: there its stream ends with its calls, and the next one goes on under that id.
        """
        wanted = requested_tool_mode(header, self.settings.responses_tool_mode) == WAIT
        return wanted and not dialect.one_id_a_turn

    @property
    def takes_engine_fields(self) -> bool:
        """Whether clients may send the fields of requests that are for the engine's operator."""
        return not self.settings.responses_compatibility_mode

    def parse_create(self, data: JsonObject) -> CreateRequest:
        """Validate a request, with the fields that this server takes. Raises `ApiError`.

        A web search is noted as ignored where nothing searches: Codex declares one in every request.
        """
        request = parse_create(data, engine_fields=self.takes_engine_fields)
        for index, tool in enumerate(request.tools_json):
            if self.service.shelf.leaves_out(tool):
                note_ignored(f"tools[{index}]")
        return request

    async def start(self) -> None:
        """Start what must run before anything is served; the engine goes on loading beside."""
        self.traces.start()
        await self.store.start()
        await self.conversations.start()
        await self.ledger.start()
        await self.door.start()
        self.engines.start()
        self.embeddings.start()
        await asyncio.gather(*(tool.start() for tool in self.tools))
        self.relay.start(
            {
                CANCEL: self.responses.cancel_here,
                FORGET: self.forgetting.here,
                FOLLOW: self.registry.follow,
                LOGGED: self.followers.ring,
            },
            take=self.outputs.take_here,
        )
        await self.upkeep.start()
        await self.watch.start()

    async def aclose(self) -> None:
        """Let what runs end, or stop it; write what is to be written, give back what is shared."""
        self.draining.begin()
        await self.followers.aclose()  # those who follow another worker's response may do so elsewhere
        grace = self.settings.shutdown_grace_seconds
        await asyncio.gather(self.registry.drain(grace), self.completions.aclose(grace=grace))
        self.end_database(LAST_ROWS_SECONDS)
        await self.registry.aclose(last_words=LAST_WORDS_SECONDS)
        await self.draining.over(LAST_WORDS_SECONDS)
        await self.service.approving.aclose()
        await self.service.live.aclose()
        await self.upkeep.aclose()
        await self.relay.aclose()
        await asyncio.gather(
            *(tool.aclose() for tool in self.tools),
            self.ledger.aclose(),
            self.service.known_turns.aclose(),
            self.store.aclose(),
            self.chats.aclose(),
            self.conversations.aclose(),
            self.files.aclose(),
            self.uploads.aclose(),
            self.approvals.aclose(),
            self.door.aclose(),
            self.engines.aclose(),
            self.embeddings.aclose(),
        )
        await self.watch.aclose()
        await self.traces.aclose()
