"""A client of the admin for each kind of user."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from tests.browser import browser  # noqa: F401 - a fixture

ClientWith = Callable[..., Client]


@pytest.fixture
def admin(db: None) -> Client:
    """A superuser's browser."""
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.fixture
def client_with(db: None) -> ClientWith:
    """Makes the browser of a member of the staff who has these permissions."""

    def make(*permissions: str) -> Client:
        user = User.objects.create_user("staff", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client = Client()
        client.force_login(user)
        return client

    return make
