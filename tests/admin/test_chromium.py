"""The admin in a real browser: Chromium against daphne. SCREENSHOTS names a folder for what it saw."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.admin.people import NAME, PASSWORD, make_superuser, settings_of
from tests.chromium import CHROMIUM, Chromium, Page
from tests.server import Server, manage

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: make services"),
    pytest.mark.any_database,
]

FILL = """
from datetime import UTC, datetime
from tests.admin import samples
samples.many(2000)
samples.agent_loop()
samples.workers(datetime.now(UTC))
bad = "<script>window.broken=1</script><img src=x onerror='window.broken=1'>\\u202e\\ud800 \u05e9\u05dc\u05d5\u05dd"
items = [samples.said(bad), {"type": bad}, samples.called(bad, bad, bad), samples.gave(bad, bad)]
samples.response(66, asked=items, output=[samples.thought(bad)], body={"instructions": bad, "user": bad}, model="<b>")
"""
CALLS, ANSWER = f"resp_{1:032x}", f"resp_{2:032x}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("admin")) as server:
        make_superuser(server)
        manage("shell", "--no-imports", "-c", FILL, **settings_of(server))
        yield server


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(server: Server, chromium: Chromium) -> Page:
    """A page whose user has logged in by the form."""
    page = chromium.page()
    page.open(f"{server.url}/admin/")
    assert page.run("location.pathname") == "/admin/login/"
    page.screenshot(pictures() / "login.png")
    page.write("#id_username", NAME)
    page.write("#id_password", PASSWORD)
    page.click("[type=submit]", loads=True)
    assert page.run("location.pathname") == "/admin/"
    return page


@pytest.fixture(autouse=True)
def nothing_went_wrong(page: Page) -> Iterator[None]:
    """Every page leaves the console empty, and gets all it asks for."""
    page.resize(1440, 900)
    page.dark(False)
    yield
    assert page.problems == []


def pictures() -> Path:
    """Return the folder for screenshots, of this run alone where none is named."""
    return Path(os.environ.get("SCREENSHOTS") or Path(os.environ["DATA_DIR"]) / "screenshots")


def save(page: Page, name: str) -> None:
    """Save a page in light and in dark."""
    page.screenshot(pictures() / f"{name}.png", whole=True)
    page.dark()
    page.screenshot(pictures() / f"{name}-dark.png", whole=True)
    page.dark(False)


def is_seen(page: Page, selector: str, text: str) -> bool:
    """Whether an element has this text in what can be seen of it."""
    return text in page.text(selector)


def test_the_first_page_leads_on(page: Page, server: Server) -> None:
    page.open(f"{server.url}/admin/")
    save(page, "index")
    page.click(".rs-door", loads=True)
    assert page.text("h1") == "Dashboard"


def test_a_list_leads_to_a_response(page: Page, server: Server) -> None:
    page.open(f"{server.url}/admin/responses_app/response/")
    assert page.run("document.querySelectorAll('#result_list tbody tr').length") == 50
    assert "2003 responses" in page.text(".paginator")
    save(page, "responses")
    page.click("#changelist-filter a[href='?status=failed']", loads=True)
    assert page.run("[...new Set([...document.querySelectorAll('.field-state')].map(e => e.innerText))]") == ["failed"]
    page.write("#searchbar", CALLS)
    page.click("#changelist-search [type=submit]", loads=True)
    assert page.text(".paginator") == "0 responses"  # the filter holds
    page.open(f"{server.url}/admin/responses_app/response/?q={CALLS}")
    page.click("#result_list tr:last-of-type th a", loads=True)
    assert page.text("h1") == CALLS


def test_a_response_is_a_conversation(page: Page, server: Server) -> None:
    page.open(f"{server.url}/admin/responses_app/response/{CALLS}/change/")
    assert page.run("[...document.querySelectorAll('.call code')].map(e => e.innerText)") == ["get_weather"] * 2
    assert page.run("document.querySelectorAll('.call .answer').length") == 2
    assert is_seen(page, ".call .answer", "light rain")
    assert is_seen(page, ".call .answer", f"came with {ANSWER}")
    assert not is_seen(page, ".reasoning", "I have a function")
    save(page, "response")
    page.click(".reasoning summary")
    assert is_seen(page, ".reasoning", "I have a function")
    page.click(".reasoning summary")
    assert not is_seen(page, ".reasoning", "I have a function")
    page.click("[data-unfold]")
    assert is_seen(page, ".reasoning", "I have a function")
    assert page.text("[data-unfold]") == "Fold reasoning"
    page.click(".rs-raw summary")
    save(page, "response-unfolded")
    page.click(f".call .answer a[href*='{ANSWER}']", loads=True)
    page.click("a[href='?turns=1']", loads=True)
    assert is_seen(page, ".bubble-assistant:last-of-type", "Rome is warmer")
    save(page, "response-turns")


def test_what_is_hostile_does_nothing(page: Page, server: Server) -> None:
    page.open(f"{server.url}/admin/responses_app/response/resp_{66:032x}/change/")
    assert "<script>window.broken=1</script>" in page.text(".bubble-user")
    page.click("[data-unfold]")
    save(page, "response-hostile")
    assert page.run("typeof window.broken") == "undefined"
    assert page.run("document.querySelectorAll('main img, main script').length") == 0


def test_a_conversation_has_its_items(page: Page, server: Server) -> None:
    page.open(f"{server.url}/admin/responses_app/conversation/")
    assert is_seen(page, "#result_list", "A trip in autumn")
    save(page, "conversations")
    page.click("#result_list th a", loads=True)
    assert page.run("document.querySelectorAll('.rs-step').length") == 2
    save(page, "conversation")


@pytest.mark.parametrize("span", ["day", "week"])
def test_the_dashboard_draws(page: Page, server: Server, span: str) -> None:
    page.open(f"{server.url}/admin/dashboard/?span={span}")
    assert page.run("document.querySelectorAll('.rs-chart rect.s-completed').length") > 10
    assert page.run("document.querySelectorAll('.rs-workers tbody tr').length") == 4  # and the server itself
    heights = "[...document.querySelectorAll('.rs-chart > svg')].map(e => e.getBoundingClientRect().height)"
    assert min(page.run(heights)) > 100
    save(page, f"dashboard-{span}")
    page.click(".rs-numbers summary")
    assert is_seen(page, ".rs-numbers", "completed")


def test_workers_are_listed(page: Page, server: Server) -> None:
    page.open(f"{server.url}/admin/responses_app/worker/")
    assert page.run("document.querySelectorAll('.pill-alive, .pill-gone').length") >= 3
    save(page, "workers")


@pytest.mark.parametrize("path", ["", "add/", "1/change/", "1/password/", "1/delete/"])
def test_users_have_djangos_own_pages(page: Page, server: Server, path: str) -> None:
    page.open(f"{server.url}/admin/auth/user/{path}")
    if path == "1/change/":  # two lists side by side, which Django's scripts make of one
        assert page.run("document.querySelectorAll('.selector-chosen').length") == 2


@pytest.mark.parametrize("path", ["dashboard/", f"responses_app/response/{CALLS}/change/", "responses_app/response/"])
def test_a_telephone_shows_it_without_scrolling_sideways(page: Page, server: Server, path: str) -> None:
    page.resize(390, 844)
    page.open(f"{server.url}/admin/{path}")
    page.screenshot(pictures() / f"narrow-{path.strip('/').replace('/', '-')}.png", whole=True)
    assert page.run("document.documentElement.scrollWidth") <= 390


def test_no_script_runs_that_the_server_did_not_send_as_a_file(page: Page, server: Server) -> None:
    """Where markup of a client's got into a page after all, the page's policy is what stops it."""
    page.open(f"{server.url}/admin/")
    injected = (
        "(() => { const script = document.createElement('script'); script.textContent = 'window.broken = 1'; "
        "document.body.append(script); const button = document.createElement('button'); "
        "button.setAttribute('onclick', 'window.broken = 1'); button.click(); return window.broken === undefined; })()"
    )
    assert page.run(injected)
    assert page.problems
    assert all("Content Security Policy" in problem for problem in page.problems)
    page.problems.clear()
