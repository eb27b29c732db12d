"""A superuser of a real server."""

from tests.server import Server, manage

PASSWORD = "correct horse battery staple"


def settings_of(server: Server) -> dict[str, str]:
    """Return the settings by which a command of manage.py finds a server's database."""
    return {name: server.environ[name] for name in ("DATA_DIR", "DATABASE_URL") if name in server.environ}


def make_superuser(server: Server, name: str = "root") -> None:
    """Make a superuser as `make superuser` does, without questions."""
    who = ("--noinput", "--username", name, "--email", "root@example.com")
    manage("createsuperuser", *who, DJANGO_SUPERUSER_PASSWORD=PASSWORD, **settings_of(server))
