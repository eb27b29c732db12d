"""What has a process keep things for as long as their projects say."""

from collections.abc import Iterable

from responses_app.kit.clock import StoreClock
from responses_app.observing.logs import keep_silent
from responses_app.runs.registry.registry import Forgetting
from responses_app.runs.retention import Expiry, RetentionWatch
from responses_app.tools.base import BaseTool
from responses_app.wiring.adapters import Adapters
from responses_app.wiring.server_tools import interpreter_of


def retention_watch(adapters: Adapters) -> RetentionWatch:
    """Return what knows how long each project keeps things; the log of the process goes by it, too."""
    keep_silent(adapters.retentions.keeps_nothing)
    return RetentionWatch(adapters.retentions, adapters.retention_store.read, close=adapters.retention_store.aclose)


def expiry_of(adapters: Adapters, tools: Iterable[BaseTool], forgetting: Forgetting, clock: StoreClock) -> Expiry:
    """Return what removes things that are past that."""
    interpreter = interpreter_of(tools)

    async def end_containers(project: str, oldest: float) -> None:
        if interpreter is not None and interpreter.made is not None:
            await interpreter.made.containers.end_older(project, oldest)

    return Expiry(
        adapters.retentions,
        expire=adapters.retention_store.expire,
        forget=forgetting.everywhere,
        end_containers=end_containers,
        now=clock,
    )
