"""The site builds without a warning, and links lead somewhere, on GitHub too."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import pages, text_of
from tests.server import ROOT, clean_environ

BUILD_SECONDS = 120.0  # it takes 5 on an idle core

pytestmark = [pytest.mark.any_server, pytest.mark.any_database]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-W",
            "--keep-going",
            "-q",
            "-d",
            folder / "doctrees",
            "docs",
            folder / "site",
        ],
        cwd=ROOT,
        env=clean_environ(DATA_DIR=str(folder)),
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "site"


def test_every_page_is_in_the_site(site: Path) -> None:
    index = (site / "index.html").read_text()
    for page in pages()[1:]:
        path = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / path).is_file()
        assert f'href="{path}"' in index or path.name == "index.html"


def anchors(text: str) -> set[str]:
    """Return what links can name in a page: its headings, as GitHub writes them."""
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.M)}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for path, heading in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text_of(page)):
        file = page.parent / path if path else page
        assert file.exists(), path
        assert not heading or heading in anchors(file.read_text()), heading
