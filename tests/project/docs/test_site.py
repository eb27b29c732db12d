"""The site: it builds without a warning, links lead somewhere, and the server shows it and nothing else."""

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from django.test import AsyncClient, override_settings

from responses_app.api import server
from tests.kit.browser import needs_chromium
from tests.kit.server import ROOT, Server, clean_environ
from tests.project.docs.pages import pages, text_of
from tests.project.docs.questions import QUESTIONS
from tests.project.docs.searching import first_pages

BUILD_SECONDS = 600.0  # it takes 10 on an idle core, and minutes on a busy machine


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    (command,) = re.findall(r"^\t\$\(BIN\)/python (-m sphinx .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    flags = [flag for flag in command.split() if flag.startswith("-") and flag != "-d"]
    done = subprocess.run(
        [sys.executable, *flags[:1], "sphinx", *flags[1:], "-d", folder / "doctrees", "docs", folder / "site"],
        cwd=ROOT,
        env=clean_environ(DATA_DIR=str(folder)),
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "-W" in flags
    return folder.resolve() / "site"


@pytest.fixture
async def client(site: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncClient]:
    """Who asks a server that has the site."""
    monkeypatch.setattr(server, "SITE", site)
    return AsyncClient()


def test_every_page_is_in_the_site(site: Path) -> None:
    index = (site / "index.html").read_text()
    for page in pages()[1:]:
        path = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / path).is_file()
        assert f'href="{path}"' in index or path.name == "index.html"


def test_every_page_has_the_bar_of_the_four_places(site: Path) -> None:
    for page in pages()[1:]:
        text = (site / page.relative_to(ROOT / "docs").with_suffix(".html")).read_text()
        assert re.findall(r'aria-current="true">(\w+)<', text) == ["Docs"], page


@needs_chromium
def test_the_search_finds_what_people_type(site: Path) -> None:
    found = first_pages(site, QUESTIONS)
    assert {question: pages for question, pages in found.items() if not {*pages} & {*QUESTIONS[question]}} == {}


def test_no_page_has_a_script_or_a_style_inside(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = re.findall(r"<(?:script|style)>|<script(?![^>]* src=)[^>]*>|<[^>]* (?:style|on\w+)=", page.read_text())
        assert found == [], page.name


def anchors(text: str) -> set[str]:
    """Return what links can name in a page: its headings, as GitHub writes them."""
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.M)}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for path, heading in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text_of(page)):
        file = page.parent / path if path else page
        assert file.exists(), path
        assert not heading or heading in anchors(file.read_text()), heading


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("", "text/html; charset=utf-8"),
        ("how-to/", "text/html; charset=utf-8"),
        ("reference/settings.html", "text/html; charset=utf-8"),
        ("_static/styles/furo.css", "text/css; charset=utf-8"),
        ("searchindex.js", "text/javascript; charset=utf-8"),
        ("_images/overview.svg", "image/svg+xml"),
    ],
)
async def test_files_are_served_as_what_they_are(client: AsyncClient, path: str, kind: str) -> None:
    answer = await client.get(f"/docs/{path}")
    assert (answer.status_code, answer["Content-Type"], answer["X-Content-Type-Options"]) == (200, kind, "nosniff")
    assert "default-src 'self'" in answer["Content-Security-Policy"]
    assert "unsafe" not in answer["Content-Security-Policy"]
    again = await client.get(f"/docs/{path}", headers={"if-none-match": answer["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(("path", "to"), [("/docs", "/docs/"), ("/docs/how-to", "/docs/how-to/")])
async def test_a_folder_ends_with_a_slash(client: AsyncClient, path: str, to: str) -> None:
    answer = await client.get(path)
    assert (answer.status_code, answer["Location"]) == (301, to)


@pytest.mark.parametrize(
    "path",
    [
        "../views/docs.py",
        "%2e%2e/views/docs.py",
        "..%2fviews%2fdocs.py",
        "/etc/passwd",
        "a%00b",
        "no.html",
        "x" * 5000,
    ],
    ids=str.__len__,
)
async def test_nothing_else_is_served(client: AsyncClient, path: str) -> None:
    assert (await client.get(f"/docs/{path}")).status_code == 404


@override_settings(DEBUG=True)  # what the site has is looked up each time
async def test_a_link_out_of_the_site_is_not_followed(client: AsyncClient, site: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (site / "link").symlink_to(tmp_path / "secret")
    try:
        assert (await client.get("/docs/link")).status_code == 404
    finally:
        (site / "link").unlink()


async def test_nothing_is_written(client: AsyncClient) -> None:
    assert (await client.post("/docs/")).status_code == 405


async def test_the_site_is_looked_through_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server, "SITE", tmp_path)
    client = AsyncClient()
    assert (await client.get("/docs/a.css")).status_code == 404, "before it is built"
    for name in (server.START, "a.css"):
        (tmp_path / name).write_text("")
    assert (await client.get("/docs/a.css")).status_code == 200
    (tmp_path / "b.css").write_text("")
    assert (await client.get("/docs/b.css")).status_code == 404
    (tmp_path / "a.css").unlink()
    assert (await client.get("/docs/a.css")).status_code == 404


async def test_a_server_without_the_site_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server, "SITE", tmp_path)
    answer = await AsyncClient().get("/docs/")
    assert answer.status_code == 200
    assert "make docs" in answer.content.decode()
    assert (await AsyncClient().get("/docs/how-to/")).status_code == 404


def test_a_server_answers_docs(daphne_server: Server) -> None:
    answer = httpx.get(f"{daphne_server.url}/docs", follow_redirects=True)
    assert answer.status_code == 200
    assert "respsite" in answer.text
