"""Closes the sites of a test: what they still run would begin to write when the test's event loop has ended."""

import inspect
from collections.abc import AsyncIterator

import pytest

from tests.kit.fakes import Site


@pytest.fixture
async def closed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Close every site of a test: what waits keeps its log meanwhile."""
    sites: list[Site] = []
    prepare = Site.__post_init__

    def noted(site: Site) -> None:
        prepare(site)
        sites.append(site)

    monkeypatch.setattr(Site, "__post_init__", noted)
    yield
    for site in sites:
        site.store.failure, site.store.gate = None, None
        await site.registry.aclose()
        await site.followers.aclose()
        await site.live.aclose()


@pytest.fixture(autouse=True)
def all_sites_closed(request: pytest.FixtureRequest) -> None:
    """Close the sites of every test that has an event loop."""
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("closed")
