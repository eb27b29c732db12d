"""Fixtures: clients with an admin key of a module's fixture `closed`, a server that asks everybody for a key."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.kit.closed import ClosedServer, bearer


@pytest.fixture(scope="module")
def admin(closed: ClosedServer) -> str:
    return closed.new_key("--admin", "--name", "first")


@pytest.fixture(scope="module")
def sdk(closed: ClosedServer, admin: str) -> Iterator[openai.OpenAI]:
    """OpenAI's SDK with the admin key, and no other."""
    with openai.OpenAI(base_url=closed.base_url, api_key="", admin_api_key=admin, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def raw(closed: ClosedServer, admin: str) -> Iterator[httpx.Client]:
    """A client that sends what no SDK would."""
    with httpx.Client(base_url=closed.url, headers=bearer(admin), verify=False, timeout=30) as client:
        yield client
