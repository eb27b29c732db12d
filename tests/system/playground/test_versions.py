"""Turns that are said anew: edited, regenerated, continued; the tree of versions; what waits for the connection."""

import json
import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Locator, WebSocketRoute, expect

from tests.kit.server import Server
from tests.system.playground.browser import Playground, drawn, playground
from tests.system.playground.held import APPLICATION, held


def versions(turn: Locator) -> Locator:
    """Return what tells which version of a turn is shown."""
    return turn.locator(".versions")


def goes_on(turn: Locator, behind: Locator) -> None:
    """Wait until a turn counts on from where the one before it was cut."""
    drawn(turn)
    said = len(turn.locator(".answer").inner_text().split())
    expect(behind.locator(".answer")).to_contain_text(f"{said + 1} {said + 2}")


def edit(turn: Locator, text: str) -> None:
    turn.get_by_role("button", name="Edit your message").click()
    field = turn.get_by_label("Your message", exact=True)
    expect(field).to_be_focused()
    field.fill(text)
    field.press("Enter")


def test_the_tree_of_versions(modules: Playground) -> None:
    """The tree alone."""
    walked = """async () => {
        const { Tree } = await import('/static/playground/versions.js');
        const tree = new Tree();
        const ids = (nodes) => nodes.map(({ id }) => id).join(' ');
        const add = (id, previous_response_id, warm = false) => tree.add({ id, previous_response_id, warm });
        for (const each of [['a', null], ['w', 'a', true], ['b', 'w'], ['c', 'b']]) add(...each);
        for (const each of [['x', 'new'], ['new', 'a'], ['r1', 'r2'], ['r2', 'r1']]) add(...each);
        const told = [ids(tree.path('c')), ...['b', 'new', 'w'].map((id) => ids(tree.siblings(id)))];
        told.push(tree.leaf('a'), ids(tree.path('r1')));
        tree.choose('b');
        told.push(tree.leaf('a'));
        tree.choose('x');
        tree.rename('new', 'd');
        told.push(tree.leaf('a'), ids(tree.path('x')), ids(tree.siblings('d')));
        tree.move('c', 'd');
        tree.remove('d');
        told.push(ids(tree.siblings('c')), tree.parentOf('x'), ids(tree.path(null)), ids(tree.path('nobody')));
        return told;
    }"""
    assert modules.page.evaluate(walked) == [
        *("a w b c", "b new", "b new", "w", "x", "r2 r1"),
        "c",
        *("x", "a d x", "b d"),
        *("b c x", "a", "", ""),
    ]


def test_a_message_is_edited_and_both_versions_are_there(page: Playground) -> None:
    page.write("repeat: one")
    page.ended(1)
    page.write("repeat: two")
    page.ended(2)
    turns = page.lane().locator(".turn")
    edit(turns.first, "repeat: another one")
    expect(turns).to_have_count(1)
    expect(page.ended(1).locator(".answer")).to_have_text("another one")
    expect(versions(turns.first)).to_have_attribute("aria-label", "Version 2 of 2")
    versions(turns.first).get_by_role("button", name="Version before").press("Enter")
    expect(turns).to_have_count(2)
    expect(turns.locator(".answer")).to_have_text(["one", "two"])
    expect(versions(turns.first).get_by_role("button", name="Version before")).to_be_focused()
    expect(page.find("#said")).to_contain_text("Version 1 of 2. one")
    page.page.keyboard.press("ArrowRight")
    expect(turns.locator(".answer")).to_have_text(["another one"])
    page.write("Which message is this?")
    expect(page.ended(2).locator(".answer")).to_contain_text("user message 2")
    page.page.keyboard.press("Tab")
    page.find(".transcript").focus()
    page.page.keyboard.press("<")
    expect(turns.locator(".answer")).to_have_text(["one", "two"])
    turns.first.get_by_role("button", name="Edit your message").click()
    page.page.keyboard.press("Escape")
    expect(turns.first.locator(".asked")).to_have_text("repeat: one")


def test_an_answer_is_regenerated_with_the_setup_of_now(page: Playground) -> None:
    page.write("count to 40")
    page.ended(1)
    page.group("Length and end")
    page.find("[name=max_output_tokens]").fill("20")
    turn = page.lane().locator(".turn")
    turn.get_by_role("button", name="Regenerate").click()
    expect(versions(turn).locator("span")).to_have_text("2/2")
    expect(turn.locator(".ending")).to_have_text("Cut at the most output tokens")
    page.find("[name=max_output_tokens]").fill("")
    turn.get_by_role("button", name="Continue").click()
    expect(page.ended(2).locator(".ending")).to_have_count(0)
    expect(page.lane().locator(".asked")).to_have_count(1)
    page.lane().locator(".turn").first.get_by_role("button", name="Version before").click()
    expect(turn).to_have_count(1)
    expect(turn.locator(".answer")).to_contain_text("39 40")


def test_versions_of_a_loop_of_calls(page: Playground) -> None:
    page.find(".card", has_text="Answer a function").click()
    call = page.ended(1).locator(".call")
    call.locator("textarea").fill('"rain"')
    call.locator("textarea").press("Control+Enter")
    expect(page.ended(2).locator(".answer")).to_contain_text('returned: "rain"')
    turns = page.lane().locator(".turn")
    turns.nth(1).get_by_role("button", name="Regenerate").click()
    expect(versions(turns.nth(1)).locator("span")).to_have_text("2/2")
    expect(page.ended(2).locator(".answer")).to_contain_text('returned: "rain"')
    edit(turns.first, "Call get_weather for Porto.")
    expect(page.ended(1).locator(".given pre, pre.given")).to_contain_text("Porto")
    expect(turns).to_have_count(1)
    expect(page.lane().locator(".status")).to_have_text("Waits for you")
    turns.first.get_by_role("button", name="Version before").click()
    expect(turns).to_have_count(2)
    expect(call.locator(".outcome pre")).to_have_text('"rain"')
    expect(page.lane().locator(".status")).to_have_text("Ready")
    page.write("repeat: behind it")
    expect(page.ended(3).locator(".answer")).to_have_text("behind it")
    turns.first.get_by_role("button", name="Next version").click()
    expect(call.locator(".outcome textarea")).to_be_visible()
    turns.first.get_by_role("button", name="Fork").click()
    expect(page.lane(2).locator(".turn .call .outcome textarea")).to_be_visible()
    page.lane(2).get_by_role("button", name="Version before").click()
    expect(page.lane(2).locator(".turn")).to_have_count(3)


def test_an_edit_makes_what_runs_give_way_and_a_steer_makes_no_version(server: Server, page: Playground) -> None:
    with held(server) as release:
        page.write(f"think: {'one more thought ' * 60}")
        expect(page.lane().locator(".thought")).to_contain_text("one more")
        page.write("count to 3000")
        expect(page.find(".steering")).to_contain_text("count to 3000")
        release()
        expect(page.ended(1).locator(".ending")).to_have_text("Steered")
        expect(page.lane().locator(".answer").last).to_contain_text("1 2 3")
        expect(page.lane().locator(".versions:visible")).to_have_count(0)
        edit(page.lane().locator(".turn").nth(1), "repeat: instead")
        expect(page.lane().locator(".answer").last).to_have_text("instead")
        turn = page.ended(2)
        expect(versions(turn).locator("span")).to_have_text("2/2")
        turn.get_by_role("button", name="Version before").click()
        expect(page.ended(2).locator(".ending")).to_have_text("Interrupted")
        page.ended(2).get_by_role("button", name="Continue").click()
        expect(page.lane().locator(".turn").nth(2).locator(".answer")).to_be_visible()
        page.page.keyboard.press("Escape")
        expect(page.ended(3).locator(".ending")).to_have_text("Interrupted")


def test_what_is_cleared_comes_back(server: Server, page: Playground) -> None:
    page.write("repeat: kept")
    page.ended(1)
    with held(server):
        page.write("count to 3000")
        expect(page.lane().locator(".answer").last).to_contain_text("1 2 3")
        page.lane().get_by_role("button", name="Clear").click()
        expect(page.lane().locator(".turn")).to_have_count(0)
    toast = page.find(".toast")
    expect(page.find("#said")).to_contain_text("Lane 1 was cleared. It can be undone for 10 seconds")
    page.lane().get_by_role("button", name="Close Lane").or_(page.find(".transcript")).first.focus()
    page.page.keyboard.press("z")
    expect(toast).to_have_count(0)
    expect(page.ended(2).locator(".ending")).to_have_text("Interrupted")
    expect(page.lane().locator(".answer").first).to_have_text("kept")
    page.write("Which message is this?")
    expect(page.ended(3).locator(".answer")).to_contain_text("user message 3")


def test_without_storing_the_turns_before_are_sent_again(page: Playground) -> None:
    page.turn_on("Store responses")
    for text in ("repeat: one", "repeat: two"):
        page.write(text)
        page.lane().locator(".answer", has_text=text.removeprefix("repeat: ")).last.wait_for()
        page.find(".lane[data-busy=false]").wait_for()
    edit(page.ended(2), "Which message is this?")
    expect(page.lane().locator(".answer").last).to_contain_text("user message 2")
    turn = page.ended(2)
    turn.get_by_role("button", name="Version before").click()
    page.write("And this?")
    expect(page.ended(3).locator(".answer")).to_contain_text("user message 3")


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that is killed and started again."""
    with Server(tmp_path_factory.mktemp("mortal"), application=APPLICATION) as server:
        yield server


def chats(server: Server) -> list[dict[str, object]]:
    listed = httpx.get(f"{server.base_url}/playground/chats").json()["data"]
    return [httpx.get(f"{server.base_url}/playground/chats/{chat['id']}").json() for chat in listed]


def connect(page: Playground) -> None:
    """Do not wait until the page tries again by itself."""
    page.page.evaluate("dispatchEvent(new Event('online'))")
    page.find("#state[data-state=open]").wait_for()


def test_what_is_sent_while_the_server_is_away_waits(mortal: Server, browser: Browser) -> None:
    """Finds messages that a page loses, or sends twice, while a server is killed and started again."""
    with playground(browser) as page:
        page.open(mortal.url)
        page.write("repeat: one")
        page.ended(1)
        mortal.kill()
        page.find("#state[data-state=waiting]").wait_for()
        for text in ("two", "three", "four"):
            page.write(f"repeat: {text}")
        held = page.lane().locator(".held")
        expect(held.nth(1)).to_contain_text("Waiting for the connection")
        expect(held.nth(2)).to_contain_text("Waits for the message before it")
        turns = page.lane().locator(".turn")
        turns.nth(2).locator(".held").get_by_role("button", name="Edit").click()
        field = turns.nth(2).get_by_label("Your message", exact=True)
        field.fill("repeat: three, edited")
        field.press("Enter")
        turns.nth(3).get_by_role("button", name="Take back").click()
        expect(turns).to_have_count(3)
        expect(page.lane().locator(".composer textarea")).to_have_value("repeat: four")
        mortal.start()
        connect(page)
        page.ended(3)
        expect(page.lane().locator(".answer")).to_have_text(["one", "two", "three, edited"])
        assert [len(chat["turns"]) for chat in chats(mortal)] == [3]  # type: ignore[arg-type]


class Wire:
    """What is between the page and the server. `cut_at(text)` closes it at a frame of the server that has this text."""

    def __init__(self, page: Playground) -> None:
        self.creates: list[str] = []  # what was asked for, in all connections
        self.opened = 0
        self.refused = 0  # how many connections are still to be closed at once
        self.forwards = True  # what the page sends
        self.cut_at = ""
        self.hides = False  # what comes from the server is held back
        self.sockets: list[WebSocketRoute] = []
        page.page.route_web_socket("**/v1/responses", self._open)

    def _open(self, socket: WebSocketRoute) -> None:
        self.opened += 1
        self.sockets.append(socket)
        if self.refused:
            self.refused -= 1
            socket.close(code=3001)
            return
        server = socket.connect_to_server()
        socket.on_message(lambda text: self._sent(socket, server, str(text)))
        server.on_message(lambda text: self._came(socket, str(text)))

    def _sent(self, socket: WebSocketRoute, server: WebSocketRoute, text: str) -> None:
        frame = json.loads(text)
        if frame["type"] == "response.create":
            self.creates.append(frame["input"][-1]["content"][0]["text"] if frame["input"] else "")
            if not self.forwards:
                self.forwards = True
                socket.close(code=3001)
                return
        server.send(text)

    def _came(self, socket: WebSocketRoute, text: str) -> None:
        if self.cut_at and self.cut_at in text:
            self.cut_at, self.hides = "", False
            socket.close(code=3001)
        elif not self.hides:
            socket.send(text)


@pytest.fixture
def wired(server: Server, browser: Browser) -> Iterator[tuple[Playground, Wire]]:
    """A page, and the wire to its server."""
    with playground(browser) as page:
        wire = Wire(page)
        yield page.open(server.url), wire


def test_what_waits_survives_several_reconnects_and_is_sent_once(wired: tuple[Playground, Wire]) -> None:
    page, wire = wired
    wire.refused = 2
    wire.sockets[-1].close(code=3001)
    page.find("#state[data-state=waiting]").wait_for()
    page.write("repeat: one")
    page.write("repeat: two")
    while wire.opened < 4:
        connect(page)
    page.ended(2)
    expect(page.lane().locator(".answer")).to_have_text(["one", "two"])
    assert wire.creates == ["repeat: one", "repeat: two"]


def test_what_was_answered_behind_a_lost_connection_is_found(wired: tuple[Playground, Wire]) -> None:
    page, wire = wired
    wire.hides, wire.cut_at = True, '"response.completed"'
    page.write("repeat: unseen")
    expect(page.ended(1).locator(".answer")).to_have_text("unseen")
    expect(page.lane().locator(".problem")).to_have_count(0)
    page.write("Which message is this?")
    expect(page.ended(2).locator(".answer")).to_contain_text("user message 2")
    assert wire.creates == ["repeat: unseen", "Which message is this?"]


def test_what_never_arrived_can_be_sent_again(wired: tuple[Playground, Wire]) -> None:
    page, wire = wired
    page.write("repeat: first")
    page.ended(1)
    wire.forwards, wire.refused = False, 1
    page.write("repeat: lost")
    turn = page.ended(2)
    expect(turn.locator(".problem")).to_contain_text("The connection closed meanwhile")
    page.write("repeat: behind it")
    connect(page)
    expect(page.lane().locator(".held:visible")).to_contain_text("Waits, because the message before it failed")
    turn.get_by_role("button", name="Send again").click()
    page.ended(3)
    expect(page.lane().locator(".answer")).to_have_text(["first", "lost", "behind it"])
    assert wire.creates == ["repeat: first", "repeat: lost", "repeat: lost", "repeat: behind it"]


def test_an_answer_that_was_cut_goes_on(server: Server, wired: tuple[Playground, Wire]) -> None:
    page, wire = wired
    wire.cut_at = '"delta":"25'
    with held(server):
        page.write("count to 3000")
        turn = page.ended(1)
        expect(turn.locator(".ending")).to_have_text("Cut")
        expect(turn.locator(".answer")).to_contain_text("1 2 3")
        page.write("Which message is this?")
        expect(page.ended(2).locator(".answer")).to_contain_text("user message 2")
        turn.get_by_role("button", name="Continue").click()
        goes_on(turn, page.lane().locator(".turn").nth(1))
        expect(versions(page.lane().locator(".turn").nth(1)).locator("span")).to_have_text("2/2")
        page.page.keyboard.press("Escape")
        page.ended(2)


def load(server: Server, page: Playground, name: str, value: str) -> Locator:
    """Open a chat that the server keeps, by its address; return the lane's turns."""
    page.page.goto(f"{server.url}/?{name}={value}")
    page.find("#state[data-state=open]").wait_for()
    return page.lane().locator(".turn")


def ask(server: Server, text: object, **fields: object) -> str:
    answer = httpx.post(f"{server.base_url}/responses", json={"input": text, **fields}, timeout=30)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def test_an_answer_is_there_after_a_reload_in_its_middle(server: Server, page: Playground) -> None:
    with held(server):
        page.write("count to 3000")
        expect(page.lane().locator(".answer")).to_contain_text("1 2 3")
        page.page.reload()
        turns = page.lane().locator(".turn")
        expect(turns.locator(".ending")).to_have_text(re.compile("Interrupted|Cut"))  # whichever the server heard first
        turns.get_by_role("button", name="Continue").click()
        goes_on(turns.first, turns.nth(1))
        page.lane().get_by_role("button", name="Interrupt").click()
        expect(page.ended(2).locator(".ending")).to_have_text("Interrupted")


def test_versions_that_were_made_elsewhere_are_there(server: Server, page: Playground) -> None:
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    first = ask(server, "Call get_weather.", tools=[tool])
    call = httpx.get(f"{server.base_url}/responses/{first}").json()["output"][-1]["call_id"]
    for output in ("rain", "sun"):
        given = [{"type": "function_call_output", "call_id": call, "output": output}]
        last = ask(server, given, tools=[tool], previous_response_id=first)
    ask(server, "repeat: behind", previous_response_id=last)
    ask(server, "repeat: beside it", previous_response_id=last)
    turns = load(server, page, "chat", first)
    expect(turns).to_have_count(3)
    expect(turns.locator(".call .outcome pre")).to_have_text("sun")
    expect(turns.nth(2).locator(".answer")).to_have_text("beside it")
    expect(versions(turns.nth(1)).locator("span")).to_have_text("2/2")
    turns.nth(1).get_by_role("button", name="Version before").click()
    expect(turns).to_have_count(2)
    expect(turns.locator(".call .outcome pre")).to_have_text("rain")
    edit(load(server, page, "response", last).first, "repeat: another beginning")
    expect(turns.locator(".answer")).to_have_text("another beginning")
    edited = page.ended(1).get_attribute("data-response") or ""
    turns = load(server, page, "response", edited)
    expect(versions(turns.first).locator("span")).to_have_text("2/2")


def test_a_response_that_still_runs_is_followed(server: Server, page: Playground) -> None:
    with held(server):
        turns = load(server, page, "chat", ask(server, "count to 300", background=True))
        expect(turns.locator(".answer")).to_contain_text("1 2 3")
        page.write("Which message is this?")
        expect(turns.nth(1).locator(".held")).to_contain_text("Waits for the answer before it")
    expect(page.ended(2).locator(".answer")).to_contain_text("user message 2")
    expect(turns.first.locator(".answer")).to_contain_text("299 300")


def test_a_conversation_has_one_line_and_versions_beside_it(server: Server, page: Playground) -> None:
    conversation = httpx.post(f"{server.base_url}/conversations", json={}).json()["id"]
    for text in ("one", "two"):
        ask(server, f"repeat: {text}", conversation=conversation)
    turns = load(server, page, "chat", conversation)
    expect(turns.locator(".answer")).to_have_text(["one", "two"])
    page.write("Which message is this?")
    expect(page.ended(3).locator(".answer")).to_contain_text("user message 3")
    edit(turns.nth(1), "Which message is this now?")
    turn = page.ended(2)
    expect(turn.locator(".answer")).to_contain_text("user message 2")
    expect(turn.locator(".aside-note")).to_contain_text("Outside of the conversation")
    edit(turns.first, "repeat: another one")
    expect(turns.locator(".answer")).to_have_text(["another one"])
    page.ended(1)
    kept = httpx.get(f"{server.base_url}/playground/chats/{conversation}").json()["turns"]
    assert [bool(each["conversation"]) for each in kept] == [True, True, True, False, False]
    turns = load(server, page, "response", kept[2]["id"])
    expect(turns).to_have_count(3)
    expect(versions(turns.nth(1)).locator("span")).to_have_text("1/2")
    expect(versions(turns.first).locator("span")).to_have_text("1/2")
