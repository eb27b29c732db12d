"""The settings of what runs."""

from dataclasses import dataclass
from functools import cached_property

from responses_app.protocol.response.steps import Summaries
from responses_app.protocol.setting import KIB, MIB, choice, flag, seconds, setting, whole
from responses_app.protocol.tiers import ServiceTiers
from responses_app.stores.base import RetentionSettings

_SUMMARIES = {"model": Summaries.MODEL, "text": Summaries.TEXT, "off": None}


@dataclass(frozen=True, kw_only=True)
class RunSettings(ServiceTiers, RetentionSettings):
    """The settings of what runs in one process."""

    database_patience_seconds: float = setting(
        30.0, seconds(),
        "how long a response waits for a database that is away: with its end, which then has failed, and with a call"
        " that must not be made twice, which then is not made",
    )  # fmt: skip
    stream_max_lag_bytes: int = setting(
        4 * MIB, whole(64 * KIB),
        "bytes of a stream that may wait for a slow reader; a reader that is further behind is dropped",
    )  # fmt: skip
    stream_delta_ms: int = setting(
        0, whole(0, 10_000),
        "for how many milliseconds text is gathered into one event, but for the first of an item; 0 = events as "
        "the text comes",
    )  # fmt: skip
    responses_tool_timeout: float = setting(
        300.0, seconds(0.1),
        "with RESPONSES_TOOL_MODE=wait, how long a response waits for outputs of the client's tools; then it has "
        "failed",
    )  # fmt: skip
    responses_max_in_flight: int = setting(
        2000, whole(1), "responses, completions, decisions and embeddings at once in one worker; one more gets a 503"
    )
    responses_store: bool = setting(
        True, flag, "keep responses in the database; `off` keeps none, whatever requests say"
    )
    responses_session_ttl: float = setting(
        600.0, seconds(),
        "how long a worker remembers, in memory, the events of a finished stream, so that a reader can pick it up"
        " again, and the sampled tokens of a chat's turns, so that its next request goes on with them; Redis "
        "keeps the latter for as long, sealed",
    )  # fmt: skip
    responses_max_active_sessions: int = setting(
        2000, whole(1),
        "finished streams that one worker remembers, to be picked up again; and, counted apart, turns of chats "
        "whose sampled tokens it remembers",
    )  # fmt: skip
    responses_max_session_bytes: int = setting(
        256 * MIB, whole(KIB),
        "memory of one worker for the events of streams that can be picked up again; and as much, counted apart, "
        "for the sampled tokens of chats' turns",
    )  # fmt: skip
    responses_max_unsaved_bytes: int = setting(
        256 * MIB, whole(KIB), "memory of one worker for ends of responses that wait to be written to the database"
    )
    reconnect_grace_seconds: float = setting(
        0.0, seconds(), "how long a stored stream whose client is gone goes on, so that the client can pick it up again"
    )
    background_max_running: int = setting(64, whole(1), "background responses that run at once in one worker")
    background_max_queued: int = setting(
        1000, whole(), "background responses that may wait for their turn in one worker"
    )
    worker_lease_seconds: float = setting(
        15.0, seconds(1),
        "how long a worker may not be heard of; then it counts as dead, and others take over its responses",
    )  # fmt: skip
    server_tool_max_output_bytes: int = setting(
        64 * KIB, whole(KIB), "how much of what a tool of the server gives back the model reads; the rest is left out"
    )
    reasoning_summaries: str = setting(
        "model", choice("model", "text", "off"),
        "where summaries of reasoning come from: the model writes them (`model`), the thought's first sentences "
        "are taken (`text`), or there are none (`off`)",
    )  # fmt: skip

    @property
    def delta_seconds(self) -> float:
        """For how long text is gathered into one event."""
        return self.stream_delta_ms / 1000

    @cached_property
    def summaries(self) -> Summaries | None:
        """Who writes summaries of reasoning where they are asked for; None: nobody."""
        return _SUMMARIES[self.reasoning_summaries]
