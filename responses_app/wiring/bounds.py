"""What the settings bound of runs: `Settings` → the limits that they are handed."""

from responses_app.protocol.response.summaries import Summaries
from responses_app.protocol.tiers import ServiceTiers
from responses_app.runs.registry.registry import RunLimits
from responses_app.runs.registry.resumable import ResumableLimits
from responses_app.runs.service import ServiceLimits
from responses_app.settings.conf import Settings

_SUMMARIES = {"model": Summaries.MODEL, "text": Summaries.TEXT, "off": None}  # by REASONING_SUMMARIES


def service_limits(settings: Settings, worker: str) -> ServiceLimits:
    """Return the bounds of the service; `worker` is the id of this process."""
    return ServiceLimits(
        max_lag_bytes=settings.stream_max_lag_bytes,
        delta_seconds=settings.stream_delta_ms / 1000,
        tool_seconds=settings.responses_tool_timeout,
        patience_seconds=settings.database_patience_seconds,
        max_unsaved_bytes=settings.responses_max_unsaved_bytes,
        store_responses=settings.responses_store,
        tiers=ServiceTiers(
            default=settings.responses_default_service_tier, allowed=settings.responses_allowed_service_tiers
        ),
        worker=worker,
        summaries=_SUMMARIES[settings.reasoning_summaries],
    )


def run_limits(settings: Settings) -> RunLimits:
    """Return the bounds of what runs in one process."""
    return RunLimits(
        max_runs=settings.responses_max_in_flight,
        max_background=settings.background_max_running,
        max_queued=settings.background_max_queued,
        reconnect_grace=settings.reconnect_grace_seconds,
        store_ttl=settings.responses_store_ttl,
        resumable=ResumableLimits(
            ttl=settings.responses_session_ttl,
            max_streams=settings.responses_max_active_sessions,
            max_bytes=settings.responses_max_session_bytes,
        ),
    )
