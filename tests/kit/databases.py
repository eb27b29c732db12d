"""The databases of test servers: a SQLite file each, or, with SERVERS_ON=postgres, a PostgreSQL database each.

Both are copies of one that was migrated once per test run. A folder keeps its database, so a server that is started
again finds what it had.
"""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.kit.postgres_server import PostgresServer

ON_POSTGRES = os.environ.get("SERVERS_ON") == "postgres"
Manage = Callable[..., str]


def database_settings(folder: Path, manage: Manage) -> dict[str, str]:
    """Make the folder's database, if it has none; return the settings that lead a server with this DATA_DIR to it.

    `manage` runs a command of manage.py with settings.
    """
    if ON_POSTGRES:
        return {"DATABASE_URL": postgres_url(folder, manage)}
    file = folder / "respsite.sqlite3"  # where a server looks by itself
    if not file.exists():
        shutil.copy(_migrated_file(manage), file)
    return {}


@functools.cache
def _migrated_file(manage: Manage) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="respsite-template-"))
    atexit.register(shutil.rmtree, folder)
    manage("migrate", "--verbosity", "0", DATA_DIR=str(folder))
    return folder / "respsite.sqlite3"


@functools.cache
def postgres() -> PostgresServer:
    """Return the PostgreSQL of these databases."""
    server = PostgresServer()
    server.start()
    atexit.register(server.close)
    return server


@functools.cache
def _migrated_database(manage: Manage) -> str:
    name = postgres().create_database()
    manage("migrate", "--verbosity", "0", DATABASE_URL=postgres().url_of(name))
    return name


def postgres_url(folder: Path, manage: Manage) -> str:
    """Make a PostgreSQL database for a folder, if it has none; return where it is, as DATABASE_URL takes it."""
    return _url_of_folder(folder.resolve(), manage)


@functools.cache  # a folder keeps its database
def _url_of_folder(folder: Path, manage: Manage) -> str:
    return postgres().url_of(postgres().create_database(template=_migrated_database(manage)))
