"""Readers of a database whose connections break."""

import pytest

from responses_app.models.engines import EngineDoor
from responses_app.stores.base import StoreError
from responses_app.stores.database import deadline
from responses_app.stores.database.threads import THREADS, DatabaseReaders
from tests.contracts.adapters.stores import DatabaseCase


class TestOnPostgres(DatabaseCase):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url

    async def test_a_connection_that_breaks_behind_the_login_is_not_kept(
        self, alias: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        readers = DatabaseReaders(alias, timeout=20.0).held()
        ended = "SELECT pg_terminate_backend(pg_backend_pid()), %s, %s"
        with monkeypatch.context() as broken:
            broken.setattr(deadline, "_BOUND", ended)
            for _ in range(THREADS):
                with pytest.raises(StoreError):
                    await readers.run(lambda db: EngineDoor.objects.using(db.alias).count())
        for _ in range(2 * THREADS):
            assert await readers.run(lambda db: EngineDoor.objects.using(db.alias).count()) >= 0
        await readers.aclose()
