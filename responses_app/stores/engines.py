"""`EngineStore`: the state of engines that trainers change, in Django's database."""

import json
from collections.abc import Mapping, Sequence

from responses_app.kit.clock import utc
from responses_app.kit.table import Store, reads, writes
from responses_app.kit.threads import Question
from responses_app.models import Worker
from responses_app.models.engines import EngineDoor, EngineReport
from responses_app.protocol.engine_state import EngineState, NumberedState, WorkerReport

MAX_WORKERS = 1000  # as many as WORKERS may be

_NUMBERS = Question("model, number", f"FROM {EngineDoor._meta.db_table}")


class EngineStore(Store[None]):
    """Keeps the state of engines, by their models. Every method raises `StoreError`."""

    unlimited = None

    async def numbers(self) -> Mapping[str, int]:
        """Return the number of the last change of each engine that was ever changed."""
        return dict(await self._polls.poll(_NUMBERS))

    @reads
    def read(self, model: str) -> NumberedState:
        """Return the state of an engine."""
        row = EngineDoor.objects.using(self._using).filter(pk=model).first()
        return NumberedState(0, EngineState()) if row is None else NumberedState(row.number, EngineState.of(row.state))

    @writes
    def change(self, model: str, number: int, state: EngineState) -> bool:
        """Keep the state that comes with this number, or was kept so; return False where another one has the number."""
        rows = EngineDoor.objects.using(self._using)
        # `ignore_conflicts`: two that come first at once; both have the row then, and one of them its number.
        rows.bulk_create([EngineDoor(model=model)], ignore_conflicts=True)
        if rows.filter(pk=model, number=number - 1).update(number=number, state=state.as_json()):
            return True
        kept = rows.get(pk=model)
        # It may be this very change, whose answer was lost. Compared as what is read: JSON knows no tuples.
        return (kept.number, kept.state) == (number, json.loads(json.dumps(state.as_json())))

    @writes
    def report(self, model: str, report: WorkerReport) -> None:
        """Keep what a worker says; it replaces what it has said of this change, and of those before it."""
        row = EngineReport(model=model, worker=report.worker, number=report.number, report=report.report)
        rows = EngineReport.objects.using(self._using)
        rows.bulk_create([row], ignore_conflicts=True)
        # Of two words that are written at once, the older may be the later: the newer one stays.
        said = rows.filter(model=model, worker=report.worker, number__lte=report.number)
        said.update(number=report.number, report=report.report)
        # The workers of long ago are forgotten, and what they said goes with the next word of any other.
        living = Worker.objects.using(self._using).values("pk")
        rows.filter(model=model).exclude(worker=report.worker).exclude(worker__in=living).delete()

    @reads
    def reports(self, model: str, *, seen_since: float) -> Sequence[WorkerReport]:
        """Return what each worker has said that was seen since then, in Unix seconds."""
        living = Worker.objects.using(self._using).filter(seen_at__gt=utc(max(0.0, seen_since))).order_by("pk")
        said = {row.worker: row for row in EngineReport.objects.using(self._using).filter(model=model)}
        return [
            WorkerReport(worker, said[worker].number, said[worker].report)
            if worker in said
            else WorkerReport(worker, 0, {})
            for worker in living.values_list("pk", flat=True)[:MAX_WORKERS]
        ]
