"""The databases of test servers: a SQLite file each, or a PostgreSQL database each in a test that is for both.

Both are copies of one that was migrated once: in a run with several processes by the first, before it forks the others.
A folder keeps its database, so a server that is started again finds what it had.
"""

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit.postgres_server import PostgresServer, programs

DATABASES = ("sqlite", "postgres")
Manage = Callable[..., str]
_chosen = [DATABASES[0]]  # the last one holds
_templates: list[Path] = []  # SQLite's, once it is made


def chosen_database() -> str:
    """Return which of `DATABASES` a server gets that names none."""
    return _chosen[-1]


@contextmanager
def database_chosen(name: str) -> Iterator[None]:
    """Give servers that are made meanwhile a database of this kind."""
    assert name in DATABASES
    _chosen.append(name)
    try:
        yield
    finally:
        _chosen.pop()


def database_settings(folder: Path, manage: Manage) -> dict[str, str]:
    """Make the folder's database, if it has none; return the settings that lead a server with this DATA_DIR to it.

    `manage` runs a command of manage.py with settings.
    """
    if chosen_database() == "postgres":
        return {"DATABASE_URL": postgres_url(folder, manage)}
    file = folder / "respsite.sqlite3"  # where a server looks by itself
    if not file.exists():
        shutil.copy(migrated_file(manage), file)
    return {}


def migrated_file(manage: Manage) -> Path:
    """Return a migrated SQLite file, to be copied; whoever asks first makes it."""
    if not _templates:
        folder = Path(tempfile.mkdtemp(prefix="respsite-template-"))
        atexit.register(shutil.rmtree, folder)
        manage("migrate", "--verbosity", "0", DATA_DIR=str(folder))
        _templates.append(folder / "respsite.sqlite3")
    return _templates[0]


@functools.cache
def postgres() -> PostgresServer:
    """Return the PostgreSQL of these databases, which all processes of a run share: nobody may stop or stall it."""
    server = PostgresServer()
    server.start()
    atexit.register(server.close)
    return server


@functools.cache
def migrated_database(manage: Manage) -> str:
    """Return the name of a migrated database of `postgres`, to be copied."""
    name = postgres().create_database()
    manage("migrate", "--verbosity", "0", DATABASE_URL=postgres().url_of(name))
    return name


def make_templates(manage: Manage) -> None:
    """Make what all databases are copied from; PostgreSQL's where it is installed."""
    migrated_file(manage)
    if programs() is not None:
        migrated_database(manage)


def url_on(server: PostgresServer, manage: Manage) -> str:
    """Make a migrated database on a server that the test may stop or stall; return where it is."""
    url = server.url_of(server.create_database())
    manage("migrate", "--verbosity", "0", DATABASE_URL=url)
    return url


def postgres_url(folder: Path, manage: Manage) -> str:
    """Make a PostgreSQL database for a folder, if it has none; return where it is, as DATABASE_URL takes it."""
    return _url_of_folder(folder.resolve(), manage)


@functools.cache  # a folder keeps its database
def _url_of_folder(folder: Path, manage: Manage) -> str:
    return postgres().url_of(postgres().create_database(template=migrated_database(manage)))
