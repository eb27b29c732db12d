"""The admin in a real browser: Chromium against daphne. SCREENSHOTS names a folder for what it saw.

Only this finds a script, a style or a policy with which a page of the admin does not work in a browser.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.kit.browser import SIZES, is_wider_than_its_window, needs_chromium, opened, problems_of
from tests.kit.people import NAME, PASSWORD, in_the_database
from tests.kit.server import Server

pytestmark = [needs_chromium]

FILL = """
from datetime import UTC, datetime
from responses_app.resources.projects.model import Project
from tests.inprocess.admin import samples
Project.objects.create(name="team", created_at=datetime.now(UTC))
samples.many(200)
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
        in_the_database(server, FILL)
        yield server


class Admin:
    """A page whose user has logged in by the form; `problems` are all that went wrong on it."""

    def __init__(self, server: Server, page: Page) -> None:
        self.page = page
        self.problems = problems_of(page)
        self._root = f"{server.url}/admin/"
        page.goto(self._root)
        assert page.url.endswith("/admin/login/?next=/admin/")
        self.save("login")
        page.fill("#id_username", NAME)
        page.fill("#id_password", PASSWORD)
        page.click("[type=submit]")
        assert page.url == f"{self._root}dashboard/"

    def open(self, path: str = "") -> None:
        self.page.goto(self._root + path)

    def find(self, selector: str, **how: Any) -> Locator:
        return self.page.locator(selector, **how)

    def save(self, name: str) -> None:
        """Save the page in light and in dark, where somebody wants to look at it."""
        folder = os.environ.get("SCREENSHOTS")
        for scheme in ("dark", "light") if folder else ():
            self.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            self.page.screenshot(path=Path(str(folder)) / f"{name}-{scheme}.png", full_page=True)


@pytest.fixture(scope="module")
def logged_in(server: Server, browser: Browser) -> Iterator[Admin]:
    with opened(browser) as page:
        yield Admin(server, page)


@pytest.fixture
def admin(logged_in: Admin) -> Iterator[Admin]:
    """The page; it leaves the console empty, and gets all it asks for."""
    yield logged_in
    assert logged_in.problems == []


def test_the_first_page_leads_on(admin: Admin) -> None:
    admin.open()
    expect(admin.find("h1")).to_have_text("Dashboard")
    admin.open("all/")
    admin.save("index")
    admin.find(".rs-door").first.click()
    expect(admin.find("h1")).to_have_text("Dashboard")


def test_a_list_leads_to_a_response(admin: Admin) -> None:
    admin.open("responses_app/response/")
    expect(admin.find("#result_list tbody tr")).to_have_count(50)
    expect(admin.find(".paginator")).to_contain_text("203 responses")
    admin.save("responses")
    admin.find("#changelist-filter a[href='?status=failed']").click()
    expect(admin.find("#changelist-filter .selected").first).to_contain_text("failed")
    assert set(admin.find(".field-state").all_inner_texts()) == {"failed"}
    admin.find("#searchbar").fill(CALLS)
    admin.find("#changelist-search [type=submit]").click()
    expect(admin.find(".paginator")).to_have_text("0 responses")  # the filter holds
    admin.open(f"responses_app/response/?q={CALLS}")
    admin.find("#result_list tr th a").last.click()
    expect(admin.find("h1")).to_have_text(CALLS)


def test_limits_are_changed_in_a_list(admin: Admin) -> None:
    for _ in range(2):  # the second change begins with what the first one has saved
        admin.find(".rs-nav").get_by_role("link", name="Projects").click()
        limit = admin.find("#result_list input[name=form-0-tokens_per_day]")
        wanted = str(1 + int(limit.input_value() or 6))
        limit.fill(wanted)
        admin.find("[name=_save]").click()
        expect(admin.find(".messagelist")).to_contain_text("1 project was changed")
        expect(limit).to_have_value(wanted)


@pytest.mark.representative
def test_a_response_is_a_conversation(admin: Admin) -> None:
    admin.open(f"responses_app/response/{CALLS}/change/")
    expect(admin.find(".call code")).to_have_text(["get_weather"] * 2)
    answers = admin.find(".call .answer")
    expect(answers).to_have_count(2)
    expect(answers.first).to_contain_text("light rain")
    expect(answers.first).to_contain_text(f"came with {ANSWER}")
    thought = admin.find(".reasoning").get_by_text("I have a function")
    expect(thought).to_be_hidden()
    admin.save("response")
    admin.find(".reasoning summary").click()
    expect(thought).to_be_visible()
    admin.find(".reasoning summary").click()
    expect(thought).to_be_hidden()
    admin.find("[data-unfold]").click()
    expect(thought).to_be_visible()
    expect(admin.find("[data-unfold]")).to_have_text("Fold reasoning")
    admin.find(".rs-raw summary").first.click()
    admin.save("response-unfolded")
    answers.locator(f"a[href*='{ANSWER}']").first.click()
    admin.find("a[href='?turns=1']").click()
    expect(admin.find(".bubble-assistant").last).to_contain_text("Rome is warmer")
    admin.save("response-turns")


def test_what_is_hostile_does_nothing(admin: Admin) -> None:
    admin.open(f"responses_app/response/resp_{66:032x}/change/")
    expect(admin.find(".bubble-user")).to_contain_text("<script>window.broken=1</script>")
    admin.find("[data-unfold]").click()
    admin.save("response-hostile")
    assert admin.page.evaluate("typeof window.broken") == "undefined"
    expect(admin.find("main img, main script")).to_have_count(0)


def test_a_conversation_has_its_items(admin: Admin) -> None:
    admin.open("responses_app/conversation/")
    expect(admin.find("#result_list")).to_contain_text("A trip in autumn")
    admin.save("conversations")
    admin.find("#result_list th a").first.click()
    expect(admin.find(".rs-step")).to_have_count(2)
    admin.save("conversation")


@pytest.mark.parametrize("span", ["day", "week"])
def test_the_dashboard_draws(admin: Admin, span: str) -> None:
    admin.open(f"dashboard/?span={span}")
    assert admin.find(".rs-chart rect.s-completed").count() > 10
    expect(admin.find(".rs-workers tbody tr")).to_have_count(4)  # and the server itself
    charts = admin.find(".rs-chart > svg")
    assert min(charts.evaluate_all("all => all.map(each => each.getBoundingClientRect().height)")) > 100
    admin.save(f"dashboard-{span}")
    admin.find(".rs-numbers summary").first.click()
    expect(admin.find(".rs-numbers").first).to_contain_text("completed")


def test_workers_are_listed(admin: Admin) -> None:
    admin.open("responses_app/worker/")
    assert admin.find(".pill-alive, .pill-gone").count() >= 3
    admin.save("workers")


def test_users_have_djangos_own_pages(admin: Admin) -> None:
    for path in ("", "add/", "1/password/", "1/delete/", "1/change/"):
        admin.open(f"auth/user/{path}")
    expect(admin.find(".selector-chosen")).to_have_count(2)  # lists side by side, made by Django's scripts


def test_a_telephone_shows_it_without_scrolling_sideways(admin: Admin) -> None:
    wide, narrow = SIZES["desktop"], SIZES["telephone"]
    admin.page.set_viewport_size({"width": narrow[0], "height": narrow[1]})
    for name in ("dashboard", f"responses_app/response/{CALLS}/change", "responses_app/response"):
        admin.open(f"{name}/")
        admin.save(f"narrow-{name.replace('/', '-')}")
        assert not is_wider_than_its_window(admin.page), name
    admin.page.set_viewport_size({"width": wide[0], "height": wide[1]})


def test_no_script_runs_that_the_server_did_not_send_as_a_file(admin: Admin) -> None:
    """Where markup of a client's got into a page after all, the page's policy is what stops it."""
    admin.open()
    injected = """() => {
        const script = document.createElement('script');
        script.textContent = 'window.broken = 1';
        document.body.append(script);
        const button = document.createElement('button');
        button.setAttribute('onclick', 'window.broken = 1');
        button.click();
        return window.broken === undefined;
    }"""
    assert admin.page.evaluate(injected)
    assert admin.problems
    assert all("Content Security Policy" in problem for problem in admin.problems)
    admin.problems.clear()
