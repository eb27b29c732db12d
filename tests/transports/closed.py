"""A server that asks for keys, and requests with one."""

from functools import cached_property

import httpx

from tests.server import Server, manage

SOME_KEYS = """
from responses_app.stores.database.api_keys import create_key, revoke_keys
good, revoked, limited = create_key("p"), create_key("p"), create_key("p", concurrent_responses=0)
revoke_keys([revoked[1].pk])
print(good[0], revoked[0], limited[0])
"""


class ClosedServer(Server):
    """A server that asks everybody for a key."""

    def new_key(self, *flags: str) -> str:
        """Make a key."""
        return self.manage("create_key", *flags).strip()

    @cached_property
    def key(self) -> str:
        """A key that may do everything, for tests that change nothing about it."""
        return self.new_key()

    def some_keys(self) -> tuple[str, str, str]:
        """Make a key that opens, one that is revoked, and one that may have no response at all; with one command."""
        *_, good, revoked, limited = self.manage("shell", "--no-imports", "-c", SOME_KEYS).split()
        return good, revoked, limited

    def manage(self, *arguments: str) -> str:
        """Run a command on this server's database."""
        names = ("DATABASE_URL", "DATA_DIR", "SECRET_KEY")
        return manage(*arguments, **{name: self.environ[name] for name in names if name in self.environ})


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def post(server: Server, key: str | None, **fields: object) -> httpx.Response:
    headers = bearer(key) if key is not None else {}
    body = {"input": "Hello", **fields}
    return httpx.post(f"{server.base_url}/responses", json=body, headers=headers, verify=False, timeout=30)


def limit(server: ClosedServer, *flags: str) -> str:
    """Change limits, as an operator does."""
    return server.manage("set_limits", *flags)
