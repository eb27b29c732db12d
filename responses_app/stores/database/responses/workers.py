"""`WorkersAlone`: the store of a server that keeps no responses, and still says which of its workers live."""

import logging

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.kit.errors import NotMigrated, StoreClosed, StoreError
from responses_app.kit.table import Store
from responses_app.stores.base import WorkerState
from responses_app.stores.database.responses.orphans import beat
from responses_app.stores.nothing import NoResponseStore

logger = logging.getLogger("respsite.stores")


class WorkersAlone(Store[None], NoResponseStore):
    """Keeps the beats of workers: the others take over the idempotency keys of one that is dead.

    A database that is away costs nothing else here, so that is logged and not raised.
    """

    unlimited = None

    async def beat(self, worker: WorkerState) -> float:
        def write(connection: BaseDatabaseWrapper) -> float:
            with transaction.atomic(using=connection.alias):
                return beat(connection, worker, now=None)

        try:
            return await self._threads.run(write)
        except (NotMigrated, StoreClosed):  # the one is told once, the other is a stop
            return self._now()
        except StoreError as problem:
            logger.warning("that this worker lives cannot be noted now: %s", problem)
            return self._now()
