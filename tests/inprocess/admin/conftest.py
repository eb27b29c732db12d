"""A client of the admin for each kind of user."""

import threading
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Permission, User
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.test import Client

from responses_app.wiring.site import get_site

ClientWith = Callable[..., Client]


@pytest.fixture(scope="session")
def closed_store(django_db_setup: None) -> Iterator[None]:
    """Close what the page of a response read with: a database that is open elsewhere cannot be removed."""
    with mock.patch.object(DatabaseWrapper, "close", _close):
        yield
        async_to_sync(get_site().store.aclose)()
        get_site.cache_clear()


def _close(connection: DatabaseWrapper) -> None:
    """Close a connection of a thread also to a database in memory, as Django does not: left open, Python 3.13 warns.

    The tests' own stays open, as the database goes with its last connection.
    """
    if connection._thread_ident != threading.main_thread().ident or not connection.is_in_memory_db():
        BaseDatabaseWrapper.close(connection)


@pytest.fixture
def admin(db: None, closed_store: None) -> Client:
    """A superuser's browser."""
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.fixture
def client_with(db: None, closed_store: None) -> ClientWith:
    """Makes the browser of a member of the staff who has these permissions, of another one with each call."""

    def make(*permissions: str) -> Client:
        others = User.objects.filter(is_staff=True).count()
        user = User.objects.create_user(f"staff{others}" if others else "staff", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client = Client()
        client.force_login(user)
        return client

    return make
