"""A proxy that drops the upgrade to a WebSocket: the page says so, and talks over HTTP.

Only this finds a page that tries for ever, or loses what a lane does, where no WebSocket gets through a real proxy.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.kit.server import Server, free_port
from tests.system.cluster.processes import Nginx
from tests.system.playground.browser import playground
from tests.system.playground.held import held

UPGRADE = "    proxy_set_header Upgrade $http_upgrade;\n"


@pytest.fixture
def front(server: Server, tmp_path: Path) -> Iterator[Nginx]:
    """nginx without the line that passes on the upgrade."""
    nginx = Nginx(tmp_path, free_port(), upstreams=[f"127.0.0.1:{server.port}"])
    conf = tmp_path / "nginx" / "respsite.conf"
    assert UPGRADE in conf.read_text()
    own = conf.read_text().replace(UPGRADE, "").replace("proxy_set_header X-Forwarded-For $remote_addr;", "")
    conf.write_text(own.replace("proxy_set_header X-Forwarded-Proto $scheme;", ""))  # or it would want a key
    try:
        nginx.start()
        yield nginx
    finally:
        nginx.stop()


def test_the_page_talks_over_http(server: Server, front: Nginx, browser: Browser) -> None:
    with playground(browser) as page:
        page.page.goto(front.url)
        expect(page.find("#banner")).to_contain_text("a proxy in front drops the header Upgrade")
        expect(page.find("#state[data-state=open]")).to_be_visible()
        page.write("repeat: over http")
        expect(page.ended(1)).to_contain_text("over http")
        with held(server) as release:
            page.write("count to 3000")
            running = page.lane().locator(".turn").nth(1)
            expect(running).to_contain_text("1 2 3")
            page.write("and backwards")  # it cannot be steered: what was written comes back
            expect(page.lane().locator(".composer .wrong")).to_contain_text("Without a WebSocket")
            page.lane().locator(".composer textarea").fill("")
            page.page.keyboard.press("Escape")
            expect(page.ended(2)).to_have_attribute("data-status", "cancelled")
            release()
        page.write("repeat: once more")
        expect(page.ended(3)).to_contain_text("once more")
        assert [each for each in page.problems if "405" not in each] == []
        front.stop()
        page.write("repeat: behind the pause")
        page.find("#state[data-state=waiting]").wait_for()
        front.start()
        page.find("#state[data-state=open]").wait_for()
