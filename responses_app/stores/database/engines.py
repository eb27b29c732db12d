"""`DatabaseEngines`: the state of engines that trainers change, in Django's database."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.kit.polling import Question
from responses_app.kit.table import Store
from responses_app.models import Worker
from responses_app.models.engines import EngineDoor, EngineReport
from responses_app.protocol.engine_state import EngineState, NumberedState, WorkerReport

MAX_WORKERS = 1000  # as many as WORKERS may be

_NUMBERS = Question("model, number", f"FROM {EngineDoor._meta.db_table}")


class DatabaseEngines(Store[None]):
    """Keeps the state of engines, by their models, in the database `using`. Every method raises `StoreError`.

    `timeout` bounds, in seconds, whatever waits for it.
    """

    unlimited = None

    async def numbers(self) -> Mapping[str, int]:
        """Return the number of the last change of each engine that was ever changed."""
        return dict(await self._polls.poll(_NUMBERS))

    async def read(self, model: str) -> NumberedState:
        """Return the state of an engine."""

        def read(connection: BaseDatabaseWrapper) -> NumberedState:
            row = EngineDoor.objects.using(connection.alias).filter(pk=model).first()
            return NumberedState(0, EngineState()) if row is None else NumberedState(row.number, _state(row))

        return await self._threads.run(read)

    async def change(self, model: str, number: int, state: EngineState) -> bool:
        """Keep the state that comes with this number, or was kept so; return False where another one has the number."""

        def write(connection: BaseDatabaseWrapper) -> bool:
            rows = EngineDoor.objects.using(connection.alias)
            with transaction.atomic(using=connection.alias):
                # `ignore_conflicts`: two that come first at once; both have the row then, and one of them its number.
                rows.bulk_create([EngineDoor(model=model)], ignore_conflicts=True)
                if rows.filter(pk=model, number=number - 1).update(number=number, state=state.as_json()):
                    return True
                kept = rows.get(pk=model)
            # It may be this very change, whose answer was lost. Compared as what is read: JSON knows no tuples.
            return (kept.number, kept.state) == (number, json.loads(json.dumps(state.as_json())))

        return await self._threads.run(write)

    async def report(self, model: str, report: WorkerReport) -> None:
        """Keep what a worker says; it replaces what it has said of this change, and of those before it."""

        def write(connection: BaseDatabaseWrapper) -> None:
            row = EngineReport(model=model, worker=report.worker, number=report.number, report=report.report)
            rows = EngineReport.objects.using(connection.alias)
            living = Worker.objects.using(connection.alias).values("pk")
            with transaction.atomic(using=connection.alias):
                rows.bulk_create([row], ignore_conflicts=True)
                # Of two words that are written at once, the older may be the later: the newer one stays.
                said = rows.filter(model=model, worker=report.worker, number__lte=report.number)
                said.update(number=report.number, report=report.report)
                # The workers of long ago are forgotten, and what they said goes with the next word of any other.
                rows.filter(model=model).exclude(worker=report.worker).exclude(worker__in=living).delete()

        await self._threads.run(write)

    async def reports(self, model: str, *, seen_since: float) -> Sequence[WorkerReport]:
        """Return what each worker has said that was seen since then, in Unix seconds."""
        since = datetime.fromtimestamp(max(0.0, seen_since), UTC)

        def read(connection: BaseDatabaseWrapper) -> Sequence[WorkerReport]:
            living = Worker.objects.using(connection.alias).filter(seen_at__gt=since).order_by("pk")
            said = {row.worker: row for row in EngineReport.objects.using(connection.alias).filter(model=model)}
            return [
                WorkerReport(worker, said[worker].number, said[worker].report)
                if worker in said
                else WorkerReport(worker, 0, {})
                for worker in living.values_list("pk", flat=True)[:MAX_WORKERS]
            ]

        return await self._threads.run(read)


def _state(row: EngineDoor) -> EngineState:
    return EngineState.of(row.state)
