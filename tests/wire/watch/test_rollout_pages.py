"""The pages of roll-outs in a real browser, on the demo engine: tokens, breaks, two side by side, a group, bounds."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from responses_app.extensions.console.watch.rollouts.page import SIDE, WINDOW
from tests.kit.browser import SIZES, axe_finds_nothing, is_wider_than_its_window, needs_chromium
from tests.kit.people import settings_of
from tests.kit.sample_rollouts import GROUP, MODEL
from tests.kit.server import Server, manage

pytestmark = [needs_chromium]

PAGES = {
    "break": f"/watch/rollouts/{GROUP}.1?g=4",
    "sampled": f"/watch/rollouts/{GROUP}.1?g=1",
    "table": f"/watch/rollouts/{GROUP}.1?g=1&as=table",
    "group": f"/watch/rollouts?group={GROUP}",
    "list": "/watch/rollouts",
    "compare": f"/watch/rollouts/{GROUP}.0?with={GROUP}.1",
    "hostile": "/watch/rollouts/hostile?g=0",
    "long": "/watch/rollouts/long?g=40",
    "empty": "/watch/rollouts/empty",
}
NARROW = (320, 740)
SIMILAR = ("sampled", "hostile", "long")  # to others, for axe
# Of tokens and rows that look alike, as far as their classes say, a few stay: axe takes its time for each.
FEW_ALIKE = """() => {
    const seen = {};
    for (const each of document.querySelectorAll('tbody tr, .t')) {
        const look = [each.parentElement, each, ...each.querySelectorAll('*')].map(({ className }) => className).join();
        seen[look] = (seen[look] ?? 0) + 1;
        if (seen[look] > 3) each.remove();
    }
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo engine, whose database has the roll-outs."""
    with Server(tmp_path_factory.mktemp("rollouts"), model_name=MODEL) as server:
        manage(
            "shell", "--no-imports", "-c", "from tests.kit.sample_rollouts import seed; seed()", **settings_of(server)
        )
        yield server
        assert "Traceback" not in server.output


@pytest.mark.parametrize("name", PAGES)
def test_at_every_width_in_light_and_dark_axe_finds_nothing(page: Page, server: Server, name: str) -> None:
    folder = os.environ.get("SCREENSHOTS")
    page.goto(f"{server.url}{PAGES[name]}")
    for size, (width, height) in {**SIZES, "narrow": NARROW}.items():
        page.set_viewport_size({"width": width, "height": height})
        assert not is_wider_than_its_window(page), f"{name} is wider than a {size}"
        if folder:
            page.screenshot(path=Path(folder) / f"rollout-{name}-{size}.png", full_page=True)
    if name not in SIMILAR:
        page.evaluate(FEW_ALIKE)
        axe_finds_nothing(page, "light", "dark")


def test_a_generation_opens_in_its_place_and_its_address_opens_it_again(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/watch/rollouts/{GROUP}.1")
    expect(page.locator(".ro-row")).to_have_count(6)
    assert page.locator(".ro-generation").count() == 0, "tokens are read when they are asked for"
    link = page.locator("#g1 .ro-open")
    link.press("Enter")
    expect(page.locator("#g1 .ro-is-sampled").last).to_contain_text("Perhaps the order is the right place")
    expect(link).to_have_attribute("aria-expanded", "true")
    assert "g=1" in page.url
    page.reload()
    expect(page.locator("#g1 .ro-generation")).to_have_count(1)
    page.locator("#g1 .ro-open").click()
    expect(page.locator(".ro-generation")).to_have_count(0)
    expect(page.locator("#g1 .ro-open")).to_have_attribute("aria-expanded", "false")


def test_the_same_links_work_without_scripts(browser: Browser, server: Server) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{server.url}/watch/rollouts/{GROUP}.1")
    page.locator("#g1 .ro-open").click()
    token = page.locator("#g1 .ro-is-sampled .t", has_text="Perhaps").first
    assert re.fullmatch(r"token \d+, log probability .*%\)", str(token.get_attribute("title")))
    page.get_by_role("link", name="As a table").click()
    expect(page.locator("#g1 table").first).to_contain_text("Place")
    context.close()


def test_a_token_tells_of_itself_under_the_mouse_and_by_the_keyboard(page: Page, server: Server) -> None:
    page.goto(f"{server.url}{PAGES['sampled']}")
    tip, tokens = page.locator("#ro-tip"), page.locator("#g1 .ro-stretch").last.locator(".t")
    expect(tip).to_be_hidden()
    tokens.nth(3).hover()
    for words in ("Perhaps", "log probability", "%)", "step-120", ", token "):
        expect(tip).to_contain_text(words)
    page.locator("h1").hover()
    expect(tip).to_be_hidden()
    assert page.locator("#g1 .ro-stretch").last.locator(".t[tabindex='0']").count() == 1, "one stop of the Tab key"
    tokens.first.focus()
    expect(tip).to_contain_text("<|channel|>")
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    expect(tip).to_contain_text("analysis")
    page.keyboard.press("End")
    expect(tokens.last).to_be_focused()
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.matches('.t')")
    page.keyboard.press("Home")
    expect(tokens.first).to_be_focused()
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    weights = page.locator("#g1 .t[data-weights]").first.get_attribute("data-weights")
    assert weights == "step-120"


def test_colours_follow_the_probability(page: Page, server: Server) -> None:
    page.goto(f"{server.url}{PAGES['sampled']}")
    levels = page.locator("#g1 .ro-is-sampled .t").evaluate_all(
        "tokens => tokens.map(t => [t.dataset.told.match(/\\((.*) %/)[1], /ro-(p\\d)/.exec(t.className)[1]])"
    )
    assert len({level for _, level in levels}) >= 4
    limits = {"p6": (99, 100), "p5": (90, 99), "p4": (50, 90), "p3": (10, 50), "p2": (1, 10), "p1": (0, 1)}
    for percent, level in levels:
        low, high = limits[level]
        assert low - 0.006 <= float(percent.replace("−", "-")) <= high + 0.006
    assert page.locator("#g1 .ro-is-prompt .t[data-told]").count() == 0


def test_a_break_shows_both_sides_and_why(page: Page, server: Server) -> None:
    page.goto(f"{server.url}{PAGES['break']}")
    row = page.locator("#g4")
    expect(row.locator(".ro-why")).to_contain_text("leaves g0 at token")
    box = row.locator(".ro-break")
    expect(box).to_contain_text("The client sent a different history")
    had, has = box.locator(".ro-side").all()
    assert had.locator(".ro-same").inner_text() == has.locator(".ro-same").inner_text()
    expect(had.locator(".ro-other")).to_contain_text("analysis")
    expect(has.locator(".ro-other")).to_contain_text("final")
    position = int(str(re.search(r"at token (\d+)", box.inner_text())[1]))  # type: ignore[index]
    assert had.locator(".ro-other .t").first.get_attribute("data-at") == str(position)


def test_a_long_roll_out_is_read_window_by_window(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/watch/rollouts/long")
    assert "142" in page.locator(".rs-tiles").inner_text() or page.locator(".rs-tiles").inner_text().count(",") > 1
    page.locator("#g42 .ro-open").click()
    row = page.locator("#g42")
    expect(row.locator(".ro-generation")).to_have_count(1)
    most = WINDOW + 4 * SIDE
    assert 0 < page.locator(".t").count() <= most
    begun = row.locator(".t").first.get_attribute("data-at")
    for name in ("Beginning", "Later", "Sampled"):
        before = row.locator(".ro-steps").inner_text()
        row.get_by_role("link", name=name, exact=True).click()
        expect(row.locator(".ro-steps")).not_to_have_text(before)
        assert 0 < page.locator(".t").count() <= most
    assert begun is not None
    assert page.locator("body").evaluate("body => body.querySelectorAll('*').length") < 8_000


def test_what_models_write_stays_text(page: Page, server: Server) -> None:
    asked = list[str]()
    page.on("dialog", lambda dialog: asked.append(dialog.message))
    for path in ("hostile?g=0", "hostile?g=0&as=table", f"hostile?with={GROUP}.1", f"{GROUP}.1?with=hostile"):
        page.goto(f"{server.url}/watch/rollouts/{path}")
        assert page.locator("#content img, #content script, #content i, #content u").count() == 0
        text = page.locator("#content").inner_text()
        assert not set("\u202e\u202c\u2066\u2069\ufeff\u200b\x00") & set(text)
        assert "\\u202e" in text
    assert asked == []


def test_a_group_is_sorted_and_leads_to_the_comparison(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/watch/rollouts/{GROUP}.2")
    page.get_by_role("link", name=GROUP, exact=True).click()
    names = page.locator("tbody th")
    expect(names).to_have_count(6)  # and not that of another project
    assert names.first.inner_text() == f"{GROUP}.0"
    assert names.last.inner_text() == f"{GROUP}.5"
    page.get_by_role("link", name="Reward").click()
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("Reward")
    assert names.first.inner_text() == f"{GROUP}.5"
    page.get_by_role("link", name="Sampled tokens").click()
    counts = [int(text) for text in page.locator("tbody td:nth-child(5)").all_inner_texts()]
    assert counts == sorted(counts, reverse=True)
    page.locator("tbody tr", has_text=f"{GROUP}.1").get_by_role("link", name="with the best").click()
    expect(page.locator("#h-part ~ p").first).to_contain_text("The first generation is the same. In g1 they begin with")
    left, right = page.locator(".ro-column").all()
    assert left.locator(".ro-same").inner_text() == right.locator(".ro-same").inner_text()
    expect(left.locator(".ro-other")).to_contain_text("It is subtracted")
    expect(right.locator(".ro-other")).to_contain_text("Perhaps the order")
    page.locator("input[name=left]").fill("4")
    page.locator("input[name=right]").fill("g5")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#h-part ~ p").first).to_contain_text(
        "The sequences of left g4 and right g5 begin with the same"
    )


def test_a_response_leads_to_its_roll_out_and_back(page: Page, server: Server) -> None:
    asked = {"model": MODEL, "input": "Hello"}
    made = httpx.post(f"{server.base_url}/responses", json=asked, headers={"x-rollout-id": "real:1"}, timeout=60)
    response_id = made.json()["id"]
    page.goto(f"{server.url}/watch/responses/{response_id}")
    page.locator("#rollout").click()
    expect(page.locator("#g0 .ro-is-sampled")).to_have_count(1)
    # The demo engine tells no log probabilities: its tokens have no colour.
    assert page.locator("#g0 .ro-is-sampled .t").count() > 3
    assert page.locator("#g0 .ro-is-sampled .t[data-told]").count() == 0
    page.locator("#g0 .ro-response").click()
    expect(page.locator("h1.id")).to_have_text(response_id)
    plain = httpx.post(f"{server.base_url}/responses", json=asked, timeout=60).json()["id"]
    page.goto(f"{server.url}/watch/responses/{plain}")
    expect(page.locator("#rollout")).to_have_count(0)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("none", 404),
        ("none%00", 404),
        ("x" * 10_000, 404),
        (f"{GROUP}.0?with=none", 404),
        (f"{GROUP}.0?with=theirs", 404),  # of another project
        ("theirs", 404),
        (f"{GROUP}.0?g=99999999999999999999", 200),
        (f"{GROUP}.0?g=-1&from=x&at=%00", 200),
        (f"{GROUP}.0?from=999999", 200),
        (f"{GROUP}.0?g=0&at=999999999", 200),
        (f"{GROUP}.0?g=77&part=tokens", 404),
        ("empty?g=0", 200),
        ("empty?with=empty", 200),
        (f"{GROUP}.0?with=empty", 200),
        (f"{GROUP}.0?with={GROUP}.1&left=0&right=999999", 200),
        (f"{GROUP}.0?with={'y' * 5_000}", 404),
        (f"{GROUP}.0?part=tokens&g=0&at=5&as=table", 200),
    ],
)
def test_hostile_addresses(server: Server, path: str, status: int) -> None:
    answer = httpx.get(f"{server.url}/watch/rollouts/{path}", timeout=60)
    assert answer.status_code == status, answer.text[:500]
    assert len(answer.content) < 600_000
    assert "script-src" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "query", ["group=none", "group=%00", f"group={GROUP}&sort=nothing", "after=%00", "after=none", "name=%00"]
)
def test_hostile_lists(server: Server, query: str) -> None:
    assert httpx.get(f"{server.url}/watch/rollouts?{query}", timeout=60).status_code == 200
    assert httpx.post(f"{server.url}/watch/rollouts", timeout=60).status_code in (403, 405)
