"""A whole conversation at three widths, light and dark: nothing overflows, and axe finds nothing in any state.

A chat, a tool loop, an approval, two lanes, a fork, a steer and an interrupt; then the events, the code, the keys.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import pytest
from playwright.sync_api import Browser, expect

from tests.kit.browser import SIZES, axe_finds_nothing, is_wider_than_its_window
from tests.kit.server import Server
from tests.system.playground.browser import Playground, playground
from tests.system.playground.held import held

Look = Callable[..., None]
MARKDOWN = """repeat: ## A head
Some **bold** *text* with `code`, a [link](https://example.com) and <img src=x onerror=alert(1)>

- one
- two

| a | b |
|---|---|
| 1 | 2 |

```python
print('long ', 'long ', 'long ', 'long ', 'long ', 'long ', 'long ', 'long ', 'long ', 'long ', 'long ', 'long ')
```

> quoted"""


@pytest.mark.parametrize("size", [pytest.param("telephone", marks=pytest.mark.representative), "desktop"])
def test_a_conversation(server: Server, browser: Browser, size: str) -> None:
    """Finds a state into which one part of the page brings another: each part alone is right."""
    is_dark = size == "telephone"
    schemes: list[Literal["light", "dark"]] = ["dark", "light"] if is_dark else ["light", "dark"]

    def fits() -> bool:
        """Whether nothing overflows; on the desktop, at a tablet's width neither."""
        widths = ("tablet", size) if size == "desktop" else ()
        for each in widths:
            width, height = SIZES[each]
            page.page.set_viewport_size({"width": width, "height": height})
            if is_wider_than_its_window(page.page):
                return False
        return not is_wider_than_its_window(page.page)

    def look(*, closely: bool = size == "desktop", in_both: bool = False) -> None:
        assert fits()
        if closely:
            axe_finds_nothing(page.page, *schemes[: 1 + in_both])

    with playground(browser, size, dark=is_dark) as page:
        page.open(server.url)
        look()
        acts = (chat, loop, approve, two_lanes, fork, partial(steer, server), partial(interrupt, server), around)
        for act in acts:
            act(page, look)
            assert fits()
        look(closely=True, in_both=True)
        assert page.problems == []


def chat(page: Playground, look: Look) -> None:
    """An answer streams in, and its reasoning folds."""
    page.write(MARKDOWN)
    turn = page.ended(1)
    expect(turn.locator(".asked")).to_contain_text("repeat:")
    answer = turn.locator(".answer")
    expect(answer.locator("strong")).to_have_text("bold")
    expect(answer.locator("p code")).to_have_text("code")
    expect(answer.locator("table td")).to_have_text(["1", "2"])
    expect(answer).to_contain_text("<img src=x onerror=alert(1)>")
    expect(answer.locator("img")).to_have_count(0)
    reasoning = turn.locator("details.reasoning")
    expect(reasoning.locator("summary")).to_contain_text("Thought for")
    expect(reasoning.locator(".thought")).to_be_hidden()
    reasoning.locator("summary").click()
    expect(reasoning.locator(".thought")).to_have_text("The user wants a text repeated.")
    for measure in ("first", "speed", "in", "out"):
        expect(turn.locator(f"[data-measure={measure}]")).to_be_visible()


def loop(page: Playground, look: Look) -> None:
    """A function is written in the form, called by the model, and answered by hand."""
    page.show("setup")
    page.group("Functions").locator("#add-function").click()
    look()
    form = page.find("#tool-form")
    form.locator("[name=name]").fill("get_weather")
    form.get_by_role("button", name="Add a parameter").click()
    form.get_by_label("Name of the parameter").fill("city")
    form.get_by_role("button", name="Keep").click()
    page.show("talk")
    page.write("Call get_weather for Lisbon.")
    call = page.ended(2).locator(".call")
    expect(call.locator("header")).to_contain_text("get_weather")
    expect(call.locator(".given")).to_contain_text('"city": "Lisbon"')
    expect(page.lane().locator(".status")).to_have_text("Waits for you")
    look()
    page.write("Forget it.")  # the server would refuse it
    expect(page.lane().locator(".wrong")).to_contain_text("answer the call above first")
    expect(page.lane().locator(".composer textarea")).to_have_value("Forget it.")
    page.lane().locator(".composer textarea").fill("")
    call.locator("textarea").fill('{"sky": "clear"}')
    call.locator("textarea").press("Control+Enter")
    expect(page.ended(3).locator(".answer")).to_contain_text('returned: {"sky": "clear"}')
    expect(call.locator(".how")).to_have_text("answered by you")


def approve(page: Playground, look: Look) -> None:
    """A call of an MCP server waits for a button."""
    page.show("setup")
    page.turn_on("tests")
    page.show("talk")
    page.write('call say with "hello"')
    asked = page.ended(4).locator(".call", has_text="Approval wanted")
    expect(page.find("#said")).to_have_text("Lane 1: tests.say waits for your approval.")
    expect(page.lane().locator(".composer textarea")).to_be_focused()  # a key that is typed approves nothing
    look(in_both=True)
    asked.get_by_role("button", name="Approve").click()
    expect(asked.locator(".how")).to_have_text("approved")
    turn = page.ended(5)
    expect(turn.locator(".call", has_text="tests.say")).to_have_count(1)
    expect(turn.locator(".answer")).to_contain_text("hello")


def two_lanes(page: Playground, look: Look) -> None:
    """One text goes to two lanes that differ."""
    page.find("[data-do=lane]").click()
    expect(page.find("#setup-lane")).to_have_text("Lane 2")
    page.show("setup")
    page.find(".segments label", has_text="High").click()
    page.show("talk")
    page.lane(2).locator(".composer textarea").fill("repeat: to both")
    page.page.keyboard.press("Control+Shift+Enter")
    expect(page.ended(6).locator(".answer")).to_have_text("to both")
    expect(page.ended(1, lane=2).locator(".answer")).to_have_text("to both")
    page.lane(1).locator(".composer textarea").focus()
    expect(page.find("#setup-lane")).to_have_text("Lane 1")
    expect(page.find("[name=effort]:checked")).to_have_value("")


def fork(page: Playground, look: Look) -> None:
    """A lane goes on from the first turn of another one."""
    page.lane().locator(".turn").first.get_by_role("button", name="Fork").click()
    expect(page.lane(3).locator(".turn")).to_have_count(1)
    expect(page.lane(3).locator(".answer table")).to_be_visible()
    page.write("Another second message", lane=3)
    expect(page.ended(2, lane=3).locator(".answer")).to_contain_text("user message 2")


def steer(server: Server, page: Playground, look: Look) -> None:
    """What is said meanwhile is read behind the thought that runs."""
    with held(server):
        page.write(f"think: {'one more thought ' * 100}", lane=3)
        expect(page.lane(3).locator(".thought").last).to_contain_text("one more")
        page.write("repeat: Now this", lane=3)
        expect(page.find(".steering")).to_contain_text("repeat: Now this")
    expect(page.ended(3, lane=3).locator(".ending")).to_have_text("Steered")
    second = page.ended(4, lane=3)
    expect(second.locator(".asked")).to_have_text("repeat: Now this")
    expect(second.locator(".answer")).to_have_text("Now this")
    expect(page.find(".steering")).to_have_count(0)


def interrupt(server: Server, page: Playground, look: Look) -> None:
    """What runs is stopped by a key; the lane goes on, and the others stand as they were."""
    with held(server):
        page.write(f"repeat: {'word for word ' * 100}", lane=3)
        expect(page.lane(3).locator(".answer").last).to_contain_text("word for")
        page.page.keyboard.press("Escape")
        expect(page.ended(5, lane=3).locator(".ending")).to_have_text("Interrupted")
    page.write("repeat: after it", lane=3)
    expect(page.ended(6, lane=3).locator(".answer")).to_have_text("after it")
    page.lane(2).get_by_role("button", name="Close Lane 2").click()
    expect(page.find(".lane")).to_have_count(2)
    expect(page.lane(1).locator(".turn")).to_have_count(6)


def around(page: Playground, look: Look) -> None:
    """The frames, the code and the keys."""
    if page.find(".wide-only[data-do=events]").is_visible():
        page.find("[data-do=events]").click()
    page.show("events")
    page.find("#events-list .row:not([hidden])").nth(2).click()
    look()
    for name in ("copy", "help"):
        page.find(f"[data-do={name}]").click()
        look()
        page.page.keyboard.press("Escape")
