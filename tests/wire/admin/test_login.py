"""Guessing at the admin's login where two workers have one database."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.kit.fixtures import two_of
from tests.kit.people import NAME, PASSWORD, make_superuser, settings_of, token
from tests.kit.server import Server, manage

LIMIT = 3


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Two workers on one database."""
    first, second = two_of(tmp_path_factory.mktemp("pair"), admin_login_failures=LIMIT, admin_login_lock_seconds=300)
    make_superuser(first)
    with first, second:
        yield first, second
    for server in (first, second):
        assert "Traceback" not in server.output


@pytest.fixture
def workers(pair: tuple[Server, Server]) -> tuple[Server, Server]:
    """The two workers, with nothing locked."""
    manage("axes_reset", **settings_of(pair[0]))
    return pair


def guess(server: Server, password: str, name: str = NAME) -> httpx.Response:
    """Log in, or try to."""
    with httpx.Client(base_url=server.url, timeout=60, verify=False) as browser:
        form = {**token(browser.get("/admin/login/")), "username": name, "password": password, "next": "/admin/"}
        return browser.post("/admin/login/", data=form)


def test_guesses_are_counted_over_all_workers(workers: tuple[Server, Server]) -> None:
    first, second = workers
    before = len(first.output)  # tests share the servers, in any order
    assert guess(first, "a").status_code == guess(second, "b").status_code == 200
    locked = guess(first, "c")
    assert (locked.status_code, locked.headers["retry-after"]) == (429, "300")
    assert "Too many logins failed" in locked.text
    assert "Try again in 5 minutes." in locked.text
    for server in workers:
        assert guess(server, PASSWORD).status_code == 429, "the right password is refused like any other"
        assert guess(server, "d", name="somebody else").status_code == 429, "and so is the address"
        assert httpx.post(f"{server.base_url}/responses", json={"input": "Hello"}).status_code == 200
    said = [line for line in first.output[before:].splitlines() if "logins to the admin as 'root'" in line]
    assert len(said) == 1
    assert "from 127.0.0.1 are locked for 300 s, after 3 failures" in said[0]
    manage("axes_reset", **settings_of(first))
    assert [guess(server, PASSWORD).status_code for server in workers] == [302, 302]


def test_guesses_at_once_are_not_more(workers: tuple[Server, Server]) -> None:
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda n: guess(workers[n % 2], f"wrong {n}"), range(10)))
    assert LIMIT <= checked_passwords(workers[0]) <= LIMIT + len(workers) - 1
    assert guess(workers[0], PASSWORD).status_code == 429


def checked_passwords(server: Server) -> int:
    """Return how many guesses got as far as the password."""
    lines = manage("axes_list_attempts", **settings_of(server)).splitlines()
    return sum(int(line.split()[-1]) for line in lines)
