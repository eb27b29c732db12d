"""The settings of what runs."""

from dataclasses import dataclass
from functools import cached_property

from responses_app.protocol.engine_state import METHOD
from responses_app.protocol.items.offers import AgentLimits
from responses_app.protocol.response.steps import Summaries
from responses_app.protocol.setting import KIB, MIB, choice, flag, seconds, setting, whole
from responses_app.protocol.tiers import ServiceTiers
from responses_app.stores.base import RetentionSettings

_SUMMARIES = {"model": Summaries.MODEL, "text": Summaries.TEXT, "off": None}


def _methods(value: str) -> tuple[str, ...]:
    """Names of methods."""
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names or any(METHOD.fullmatch(name) is None for name in names):
        raise ValueError("names of methods, separated by commas, like load_from,update_from_disk")
    return names


@dataclass(frozen=True, kw_only=True)
class RunSettings(ServiceTiers, RetentionSettings):
    """The settings of what runs in one process."""

    database_patience_seconds: float = setting(
        30.0, seconds(),
        "how long a finished response waits for an unreachable database before it fails; also how long a tool "
        "call waits that must not run twice, and is then not made",
    )  # fmt: skip
    stream_max_lag_bytes: int = setting(
        4 * MIB, whole(64 * KIB),
        "bytes of a stream that may wait for a slow client; a client that is further behind is disconnected",
    )  # fmt: skip
    stream_delta_ms: int = setting(
        0, whole(0, 10_000),
        "group the text of a stream into one event per this many milliseconds; the first text of an item is sent "
        "at once; 0 = no grouping",
    )  # fmt: skip
    responses_tool_timeout: float = setting(
        300.0, seconds(0.1),
        "with RESPONSES_TOOL_MODE=wait, how long a response waits for the outputs of the client's tools; then it "
        "fails",
    )  # fmt: skip
    responses_max_in_flight: int = setting(
        2000, whole(1),
        "responses, completions, decisions and embeddings that one worker runs at once; further requests get a "
        "503",
    )  # fmt: skip
    responses_store: bool = setting(
        True, flag, "store responses in the database; `off` stores none, whatever requests ask for"
    )
    responses_session_ttl: float = setting(
        600.0, seconds(),
        "how long a worker keeps two things in memory: the events of a finished stream, for clients that resume "
        "it, and the sampled tokens of turns, for clients that send their history with the next request; Redis keeps "
        "these tokens as long, encrypted",
    )  # fmt: skip
    responses_max_active_sessions: int = setting(
        2000, whole(1),
        "finished streams that one worker keeps so that clients can resume them; also, counted separately, the "
        "turns whose sampled tokens it keeps",
    )  # fmt: skip
    responses_max_session_bytes: int = setting(
        256 * MIB, whole(KIB),
        "memory of one worker for the streams that can be resumed, whose events are compressed; as much again, counted "
        "separately, for the sampled tokens of turns",
    )  # fmt: skip
    responses_max_unsaved_bytes: int = setting(
        256 * MIB, whole(KIB), "memory of one worker for finished responses that are not yet written to the database"
    )
    reconnect_grace_seconds: float = setting(
        0.0, seconds(),
        "how long a stored stream continues after its client disconnects, so that the client can reconnect; 0 = "
        "it is cancelled at once",
    )  # fmt: skip
    background_max_running: int = setting(64, whole(1), "background responses that one worker runs at once")
    background_max_queued: int = setting(
        1000, whole(), "background responses that may wait in one worker; further ones get a 429"
    )
    rollout_engine_percent: int = setting(
        50, whole(0, 99),
        "percent of an engine's turns that requests of roll-outs have while other requests wait, too; 0 = they are "
        "served only while nothing else waits",
    )  # fmt: skip
    worker_lease_seconds: float = setting(
        15.0, seconds(1),
        "how long a worker may miss its heartbeat in the database; then other workers take over its responses "
        "(see When a worker dies)",
    )  # fmt: skip
    engine_weights: bool = setting(
        False, flag,
        "let trainers pause the engines and change their weights: `/v1/engine`, for keys with the scope "
        "`api.engine.write` (see Weights that change)",
    )  # fmt: skip
    engine_pause_seconds: float = setting(
        3600.0, seconds(1),
        "how long a trainer may pause an engine with one request; then the engine goes on by itself",
    )  # fmt: skip
    engine_weights_seconds: float = setting(600.0, seconds(1), "how long one step of an update of weights may take")
    engine_rpc_methods: tuple[str, ...] = setting(
        (), _methods,
        "methods of vLLM's workers that trainers may call with `rpc`, separated by commas (see Weights that change)",
        default_text="unset: none",
    )  # fmt: skip
    server_tool_max_output_bytes: int = setting(
        64 * KIB, whole(KIB),
        "largest part of the output of a tool run by the server that the model reads; the rest is left out",
    )  # fmt: skip
    unserved_tools: str = setting(
        "ignore", choice("ignore", "refuse"),
        "tools that coding agents declare in every request (`web_search`, `image_generation`, `computer`), where "
        "nothing runs them here: `ignore` runs the request without them and names them in the response header "
        "`respsite-ignored` (see Request fields), `refuse` answers 400; a `tool_choice` that demands one always gets "
        "400",
    )  # fmt: skip
    server_tool_early: str = setting(
        "known", choice("off", "known", "predicted"),
        "which calls of server tools that only read are begun before they are asked for: those that a program "
        "makes together (`known`), also those that the model goes on to write behind a call, which costs tokens of "
        "the engine that no response has (`predicted`), or none (`off`; see Calls begun early)",
    )  # fmt: skip
    multi_agent_max_concurrent: int = setting(
        16, whole(1, 1000),
        "largest `multi_agent.max_concurrent_subagents` of a request: agents of one response that work at once, "
        "without its root",
    )  # fmt: skip
    multi_agent_max_agents: int = setting(
        64, whole(1, 10_000), "agents that one response may start in all; the model reads that there are no more"
    )
    multi_agent_max_depth: int = setting(
        4, whole(1, 100), "how deep the agents of one response may be: agents that agents have started, and so on"
    )
    multi_agent_max_calls: int = setting(
        1000, whole(1, 100_000),
        "how often all agents of one response may start, message, wait for, interrupt or list agents; behind that "
        "they can only answer",
    )  # fmt: skip
    multi_agent_wait_seconds: float = setting(
        600.0, seconds(0.1), "how long an agent waits for a message of another one before it goes on without"
    )
    reasoning_summaries: str = setting(
        "model", choice("model", "text", "off"),
        "source of reasoning summaries: written by the model (`model`), the first sentences of the reasoning "
        "(`text`), or none (`off`)",
    )  # fmt: skip

    @property
    def rollout_share(self) -> float:
        """The part of turns that roll-outs have beside others."""
        return self.rollout_engine_percent / 100

    @property
    def delta_seconds(self) -> float:
        """For how long text is gathered into one event."""
        return self.stream_delta_ms / 1000

    @property
    def agent_limits(self) -> AgentLimits:
        """How far the agents of one response may go."""
        return AgentLimits(
            concurrent=self.multi_agent_max_concurrent,
            total=self.multi_agent_max_agents,
            depth=self.multi_agent_max_depth,
            calls=self.multi_agent_max_calls,
            wait_seconds=self.multi_agent_wait_seconds,
        )

    @cached_property
    def summaries(self) -> Summaries | None:
        """Who writes summaries of reasoning where they are asked for; None: nobody."""
        return _SUMMARIES[self.reasoning_summaries]
