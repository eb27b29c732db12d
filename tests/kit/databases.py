"""The databases of test servers: a SQLite file each, or a PostgreSQL database each in a test that is for both.

Both are copies of one that was migrated once: in a run with several processes by the first, before it forks the others.
A folder keeps its database, so a server that is started again finds what it had.
"""

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.kit.postgres_server import PostgresServer, programs

DATABASES = ("sqlite", "postgres")
Manage = Callable[..., str]
_chosen = DATABASES[0]
_templates: dict[str, str] = {}  # by kind, once they are made: SQLite's file, PostgreSQL's database
_urls: dict[Path, str] = {}  # of PostgreSQL, by folder


def chosen_database() -> str:
    """Return which of `DATABASES` a server gets that names none: that of the test which runs."""
    return _chosen


def choose_database(name: str) -> None:
    """Give servers that are made from now on a database of this kind."""
    global _chosen
    assert name in DATABASES
    _chosen = name


def database_settings(folder: Path, manage: Manage, *, kind: str | None = None) -> dict[str, str]:
    """Make the folder's database, if it has none; return the settings that lead a server with this DATA_DIR to it.

    `manage` runs a command of manage.py with settings. `kind` is one of `DATABASES`; without it, the test's own.
    """
    if (kind or chosen_database()) == "postgres":
        return {"DATABASE_URL": postgres_url(folder, manage)}
    file = folder / "respsite.sqlite3"  # where a server looks by itself
    if not file.exists():
        shutil.copy(migrated_file(manage), file)
    return {}


def migrated_file(manage: Manage) -> Path:
    """Return a migrated SQLite file, to be copied; whoever asks first makes it."""
    if "sqlite" not in _templates:
        folder = Path(tempfile.mkdtemp(prefix="respsite-template-"))
        atexit.register(shutil.rmtree, folder)
        manage("migrate", "--verbosity", "0", DATA_DIR=str(folder))
        _templates["sqlite"] = str(folder / "respsite.sqlite3")
    return Path(_templates["sqlite"])


@functools.cache
def postgres() -> PostgresServer:
    """Return the PostgreSQL of these databases, which all processes of a run share: nobody may stop or stall it."""
    server = PostgresServer()
    server.start()
    atexit.register(server.close)
    return server


def migrated_database(manage: Manage) -> str:
    """Return the name of a migrated database of `postgres`, to be copied; whoever asks first makes it."""
    if "postgres" not in _templates:
        name = postgres().create_database()
        manage("migrate", "--verbosity", "0", DATABASE_URL=postgres().url_of(name))
        _templates["postgres"] = name
    return _templates["postgres"]


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
    place = folder.resolve()
    if place not in _urls:
        _urls[place] = postgres().url_of(postgres().create_database(template=migrated_database(manage)))
    return _urls[place]
