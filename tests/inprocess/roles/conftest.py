"""A server with a user for each role and a marker in all content, and the browsers of these users."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import httpx
import pytest

from tests.inprocess.roles.people import NAMES, make_people, signed_in
from tests.inprocess.roles.planted import plant
from tests.kit.inprocess import ClosedServer

SLOW = {"tokens_per_second": 200}  # so that a response runs until it is cancelled


@dataclass(frozen=True)
class House:
    """What the matrix is asked of."""

    server: ClosedServer
    ids: Mapping[str, str]  # of what was planted
    browsers: Mapping[str, httpx.Client]  # by the names of their users; "nobody" is not signed in


@pytest.fixture(scope="package")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with ClosedServer(tmp_path_factory.mktemp("house"), auth="on", engine_options=SLOW) as server:
        make_people(server)
        ids = plant(server)
        nobody = httpx.Client(base_url=server.url, timeout=60)
        nobody.get("/admin/login/")  # for the token of forms
        browsers = {"nobody": nobody, **{name: signed_in(server, name) for name in NAMES}}
        yield House(server, ids, browsers)
        for browser in browsers.values():
            browser.close()
        assert "Traceback" not in server.output
