"""Users of a real server: one for each role, and browsers that they are signed in with."""

import httpx

from responses_app.stores.roles import Role
from tests.kit.inprocess import ClosedServer
from tests.kit.people import PASSWORD, log_in

ROOT = "root"  # a superuser
NAMES = (*(str(role) for role in Role), ROOT)
PASS = {"Respsite-Session": "default"}  # what a page of the server says with a request to the API

_MAKE = f"""
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from responses_app.stores.database.roles import apply_roles
password = make_password({PASSWORD!r})
for name in {NAMES!r}:
    user = User.objects.create(username=name, password=password, is_superuser=name == {ROOT!r})
    user.is_staff = user.is_superuser
    user.save()
    if not user.is_superuser:
        apply_roles(user, [name])
"""


def make_people(server: ClosedServer) -> None:
    """Make a user for each role, named like it, and a superuser."""
    run(server, _MAKE)


def run(server: ClosedServer, script: str) -> None:
    """Run Python on a server's database; it must print nothing."""
    server.operate("shell", "--no-imports", "-c", script)


def signed_in(server: ClosedServer, name: str) -> httpx.Client:
    """Return a browser; unlike `log_in`'s it does not follow redirects."""
    browser = log_in(server, name)
    browser.follow_redirects = False
    return browser


def roles_script(name: str, *roles: str) -> str:
    """Return what gives a user exactly these roles."""
    return f"""
from django.contrib.auth.models import User
from responses_app.stores.database.roles import apply_roles
apply_roles(User.objects.get(username={name!r}), {roles!r})
"""
