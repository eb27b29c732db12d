"""A superuser of a real server, and a browser he is logged in with."""

import re

import httpx

from tests.kit.closed import ClosedServer
from tests.kit.server import Server, manage

NAME, PASSWORD = "root", "correct horse battery staple"


def settings_of(server: Server) -> dict[str, str]:
    """Return the settings by which a command of manage.py finds a server's database."""
    return {name: server.environ[name] for name in ("DATA_DIR", "DATABASE_URL") if name in server.environ}


def make_superuser(server: Server) -> None:
    """Make a superuser as `make superuser` does, without questions."""
    who = ("--noinput", "--username", NAME, "--email", "root@example.com")
    manage("createsuperuser", *who, DJANGO_SUPERUSER_PASSWORD=PASSWORD, **settings_of(server))


def in_the_database(server: Server, *lines: str) -> str:
    """Run lines of Python on a server's database, behind those that make a superuser; return what they print."""
    superuser = f"User.objects.create_superuser({NAME!r}, password={PASSWORD!r})"
    script = "\n".join(["from django.contrib.auth.models import User", superuser, *lines])
    if isinstance(server, ClosedServer):
        return server.manage("shell", "--no-imports", "-c", script)
    return manage("shell", "--no-imports", "-c", script, **settings_of(server))


def log_in(server: Server, name: str = NAME) -> httpx.Client:
    """Return a client that has logged in by the form; it follows redirects."""
    browser = httpx.Client(base_url=server.url, follow_redirects=True, timeout=60)
    form = {**token(browser.get("/admin/")), "username": name, "password": PASSWORD, "next": "/admin/"}
    assert "Log out" in browser.post("/admin/login/", data=form).text
    return browser


def token(answer: httpx.Response) -> dict[str, str]:
    """Return the field that Django wants back from its forms."""
    return {"csrfmiddlewaretoken": re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', answer.text)[0]}
