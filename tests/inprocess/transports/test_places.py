"""The bar of the four places is the same on the playground, the admin and the page of the API."""

import re

import httpx
import pytest

from tests.kit.inprocess import Server

LINKS = ["/", "/", "/admin/", "/docs/", "/openapi"]


@pytest.mark.parametrize(("path", "here"), [("/", "Playground"), ("/admin/login/", "Admin"), ("/openapi", "API")])
def test_each_page_has_it_and_says_where_one_is(demo_server: Server, path: str, here: str) -> None:
    page = httpx.get(demo_server.url + path, headers={"accept": "text/html"}).text
    [bar] = re.findall(r'<nav class="places".*?</nav>', page, re.DOTALL)
    assert re.findall(r'href="([^"]*)"', bar) == LINKS
    assert re.findall(r'aria-current="true">(\w+)<', bar) == [here]
