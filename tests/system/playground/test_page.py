"""The page itself: who gets it, what it may load, how large it is, how soon it is there; and its other buttons.

Only this finds a part of the page that a real browser does not load or let run, or a button that does nothing.
"""

import asyncio
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.clients.codex.cli import Codex
from tests.clients.codex.cli import installed as codex_installed
from tests.clients.javascript.node import installed as node_packages
from tests.clients.javascript.node import run_script
from tests.kit.browser import axe_finds_nothing, opened
from tests.kit.programs import run_program
from tests.kit.server import ROOT, Server, clean_environ
from tests.system.playground.browser import Playground

SCRIPTS = ROOT / "responses_app/extensions/playground/static/playground"
MAX_SCRIPT_BYTES = 400_000  # as they lie there; `test_text.py` bounds what a first visit loads
MAX_LINES = 450


def usage(read: int, cached: int, written: int) -> dict[str, object]:
    return {"input_tokens": read, "input_tokens_details": {"cached_tokens": cached}, "output_tokens": written}


def test_a_client_of_the_api_hears_json_there(server: Server) -> None:
    for method, accept in (("GET", "application/json"), ("POST", "*/*"), ("DELETE", "application/json")):
        answer = httpx.request(method, f"{server.url}/", headers={"accept": accept})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    page = httpx.get(f"{server.url}/", headers={"accept": "text/html,*/*;q=0.8"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"


def test_its_policy_lets_in_files_of_this_server_alone(server: Server) -> None:
    answer = httpx.get(f"{server.url}/")
    policy = answer.headers["content-security-policy"]
    assert f"connect-src 'self' ws://127.0.0.1:{server.port};" in policy
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    markup = answer.text
    assert re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", markup) == []
    loaded = re.findall(r'(?:src|<link[^>]* href)="([^"#]+)"', markup)
    assert all(path.startswith("/static/") for path in loaded), loaded


def test_a_script_that_got_into_it_does_not_run(page: Playground) -> None:
    injected = """() => {
        const script = document.createElement('script');
        script.textContent = 'window.broken = 1';
        document.body.append(script);
        return window.broken === undefined;
    }"""
    assert page.page.evaluate(injected)
    assert all("Content Security Policy" in problem for problem in page.problems)
    page.problems.clear()


def test_the_scripts_are_small_and_make_no_markup_of_text() -> None:
    files = sorted(SCRIPTS.glob("*.js"))
    assert sum(path.stat().st_size for path in files) <= MAX_SCRIPT_BYTES
    for path in files:
        text = path.read_text()
        assert len(text.splitlines()) < MAX_LINES, path.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function\b", text), (
            path.name
        )


COPIED = 'repeat: it\'s "copied" for $HOME & `pwd` \\n 100 % – ü'


def test_what_is_copied_works(page: Playground, tmp_path: Path) -> None:
    """Finds code that the page gives and that its language, its SDK or the Codex CLI does not take."""
    page.turn_on("tests")
    page.find("[name=instructions]").fill("Be 'brief'.\nNever say \"no\".")
    page.find(".card", has_text="Answer a function by hand").click()
    page.ended(1)
    page.find("[data-do=lane]").click()
    page.lane(2).locator(".composer textarea").fill(COPIED)
    page.find("[data-do=copy]").click()

    def copied(language: str) -> str:
        page.find("#copy").get_by_role("tab", name=language).click()
        return page.find("#copy-text").inner_text()

    codes = {language: copied(language) for language in ("Python", "Node", "curl", "Codex")}
    with ThreadPoolExecutor(1) as thread:  # playwright's own loop is on this one
        said = thread.submit(asyncio.run, run_copied(codes, tmp_path)).result()
    assert {language: text for language, text in said.items() if COPIED[8:] not in text} == {}


async def run_copied(codes: dict[str, str], folder: Path) -> dict[str, str]:
    """Run what was copied, each where it belongs; return what it printed."""
    files = {name: folder / name for name in ("copied.py", "copied.sh", "copied.mjs")}
    for file, language in zip(files.values(), ("Python", "curl", "Node"), strict=True):
        file.write_text(codes[language])
    codex = Codex(codex_installed(), folder / "codex", config=codes["Codex"])
    runs = [
        run_program(sys.executable, files["copied.py"], cwd=folder, environ=clean_environ(), seconds=60),
        run_program("sh", files["copied.sh"], cwd=folder, environ=clean_environ(), seconds=60),
        run_script(files["copied.mjs"], packages=node_packages(), folder=folder / "node"),
    ]
    done = [await each for each in runs]
    assert [each.complaints for each in done if each.exit_code] == []
    python, curl, node = (each.printed for each in done)
    turn = await codex.ask(COPIED)
    assert turn.exit_code == 0, turn.complaints
    events = [json.loads(line[6:]) for line in curl.splitlines() if line.startswith("data: {")]
    return {
        "Python": python,
        "curl": events[-1]["response"]["output"][-1]["content"][0]["text"],
        "Node": node,
        "Codex": str(turn.last_message),
    }


def test_a_function_is_written_by_form_or_as_json(page: Playground) -> None:
    page.group("Functions").locator("#add-function").click()
    form = page.find("#tool-form")
    form.locator("[name=name]").fill("get time")
    form.get_by_role("button", name="Keep").click()
    expect(page.find("#tool-wrong")).to_contain_text("letters, digits")
    form.locator("[name=name]").fill("get_time")
    form.get_by_role("button", name="Add a parameter").click()
    form.get_by_label("Name of the parameter").fill("zone")
    form.get_by_role("tab", name="JSON").click()
    written = form.locator("[name=json]")
    assert '"zone"' in written.input_value()
    written.fill(written.input_value().replace('"zone"', '"place"'))
    form.get_by_role("tab", name="Form").click()
    expect(form.get_by_label("Name of the parameter")).to_have_value("place")
    form.get_by_role("button", name="Keep").click()
    expect(page.find("#functions")).to_contain_text("get_time")
    page.page.reload()
    expect(page.find("#functions")).to_contain_text("get_time")


def test_what_waits_is_no_part_of_the_turn_behind_a_lost_connection(modules: Playground) -> None:
    shown = """async () => {
        const { Lane } = await import('/static/playground/lane.js');
        const { emptySetup } = await import('/static/playground/request.js');
        const page = { facts: { tools: [], servers: [] }, send: () => true };
        const lane = new Lane('lane-9', 'Lane 9', emptySetup(), page);
        lane.take({ type: 'response.created', response: { id: 'resp_1', status: 'in_progress' } });
        for (const text of ['parked', 'unanswered']) {
            lane.composer.field.value = text;
            lane.composer.submit();
        }
        for (const what of ['accepted', 'pending']) lane.take({ type: `response.steer.${what}`, steer: { id: 's' } });
        lane.lost();
        lane.send([{ role: 'user', content: 'next' }]);
        return [lane.turns.at(-1).element.textContent, lane.composer.steering.length];
    }"""
    text, steering = modules.page.evaluate(shown)
    assert "next" in text
    assert "parked" not in text
    assert steering == 0


# A lane whose connection closes in the middle of an answer, of which the server says that it still runs. Its events
# come again from the first one on, and end as `ends` says; returns what is shown before and behind them, and what was
# sent.
CUT_AND_FOLLOWED = """async (ends) => {
    const { Lane } = await import('/static/playground/lane.js');
    const { asShown, emptySetup } = await import('/static/playground/request.js');
    const response = (status, output = []) => ({ id: 'resp_1', status, output });
    const event = (type, more) => ({ type: `response.${type}`, output_index: 0, ...more });
    const item = (text, status = 'completed') => ({ type: 'message', status, content: [{ text }] });
    const added = event('output_item.added', { item: item('', 'in_progress') });
    const begun = [event('created', { response: response('in_progress') }), added];
    const words = (delta) => event('output_text.delta', { delta });
    const stream = new TransformStream();
    const writer = stream.writable.getWriter();
    const give = (each) => writer.write(new TextEncoder().encode(`data: ${JSON.stringify(each)}\n\n`));
    const sent = [];
    let answered;
    const followed = new Promise((resolve) => (answered = resolve));
    const lane = new Lane('lane-9', 'Lane 9', emptySetup(), {
        facts: { tools: [], servers: [] }, mayTalk: () => true,
        send: (frame) => lane.isConnected && sent.push(frame) > 0,
        ask: async () => response('in_progress'),
        answer: async () => (answered(), { body: stream.readable }),
    });
    const said = (text) => ({ role: 'user', content: [{ type: 'input_text', text }] });
    lane.say(said('count'));
    for (const each of [...begun, words('1 2 3')]) lane.take(each);
    lane.lost();
    lane.say(said('next'));
    lane.ready();
    await followed;
    const waits = (element) => [...element.querySelectorAll('.waiting, .held')].filter((each) => !each.hidden);
    const parts = (element) => [element.querySelector('.answer'), ...waits(element)];
    const textOf = (each) => each?.textContent ?? '';
    const shown = () => lane.turns.map(({ element }) => parts(element).map(textOf).join(' | '));
    const until = async (isSo) => {
        for (let frame = 0; frame < 1000 && !isSo(); frame += 1) await new Promise(requestAnimationFrame);
    };
    await until(() => shown()[0].startsWith('1 2 3'));
    const before = [shown(), lane.status.textContent, sent.length];
    const output = ends.text ? [item(ends.text)] : [];
    const more = ends.text ? [words(ends.text), event('output_item.done', { item: output[0] })] : [];
    const end = event(ends.status, { response: response(ends.status, output) });
    for (const each of [...begun, ...more, end]) await give(each);
    await writer.close();
    await until(() => sent.length > 1 && shown()[0].startsWith(ends.text ?? '1 2 3'));
    const { previous_response_id = null, metadata = null, input } = sent[1] ?? {};
    const second = { id: 'resp_2', metadata, previous_response_id, input, output: [] };
    const [first, next] = asShown([{ ...response('failed'), input: [said('count')] }, second]);
    const reloaded = [first.output.map(({ content }) => content[0].text), next.previous_response_id, next.input.length];
    return { before, after: shown()[0], sent: [previous_response_id, input.length], reloaded };
}"""


@pytest.mark.parametrize(
    ("ends", "after", "sent", "reloaded"),
    [
        pytest.param({"status": "failed"}, "1 2 3", [None, 3], [["1 2 3"], "resp_1", 1], id="its worker died"),
        pytest.param(
            {"status": "completed", "text": "1 2 3 4"}, "1 2 3 4", ["resp_1", 1], [[], "resp_1", 1], id="it went on"
        ),
    ],
)
def test_what_was_read_stays_and_what_waits_comes_behind_it(
    modules: Playground, ends: dict[str, str], after: str, sent: list[object], reloaded: list[object]
) -> None:
    told = modules.page.evaluate(CUT_AND_FOLLOWED, ends)
    (first, second), status, count = told["before"]
    assert first.startswith("1 2 3 | The connection closed here. Waiting for the rest: the server has this answer")
    assert second.startswith(" | Waits for the answer before it")
    assert (status, count) == ("Waiting for the rest", 1)
    assert (told["after"], told["sent"], told["reloaded"]) == (after, sent, reloaded)


@pytest.mark.parametrize(
    ("kept", "numbers"),
    [
        pytest.param(
            {"usage": usage(12345, 11110, 11), "firstAt": 250, "endedAt": 2250},
            ["250 ms to first token", "5.0 tokens/s", "12,345 in, 90 % cached", "11 out"],
            id="measured here",
        ),
        pytest.param({"usage": usage(3, 2, 1501)}, ["3 in, 67 % cached", "1,501 out"], id="answered elsewhere"),
        pytest.param(
            {"usage": usage(0, 0, 0), "status": "cancelled"}, ["Cut", "0 in, 0 % cached", "0 out"], id="empty"
        ),
        pytest.param({"usage": usage(8, 8, 0), "kind": "warm"}, ["Warmed up", "8 in, 100 % cached"], id="warmed up"),
        pytest.param({}, [], id="without usage"),
    ],
)
def test_the_numbers_below_an_answer(modules: Playground, kept: dict[str, object], numbers: list[str]) -> None:
    shown = """async (kept) => {
        const { Turn } = await import('/static/playground/turn.js');
        const output = [{ type: 'message', content: [] }];
        const turn = Turn.of({ id: 'resp_1', status: 'completed', output, ...kept }, {});
        return [...turn.foot.querySelectorAll('.numbers > .ending, [data-measure]')].map((each) => each.textContent);
    }"""
    assert modules.page.evaluate(shown, kept) == numbers


# What happens late, when the page shows something else by then: scripts, and what they return.
LATE = {
    "a socket was refused before the one that is opened": (
        """
        const { Connection } = await import('/static/playground/connection.js');
        const [Real, sockets, answers, states] = [WebSocket, [], [], []];
        globalThis.WebSocket = class { constructor() { sockets.push(this); } };
        const connection = new Connection('', () => [], () => new Promise((answer) => answers.push(answer)));
        connection.addEventListener('state', ({ detail }) => states.push(detail.message ?? detail.state));
        for (const place of [0, 1]) {
            connection.open();
            sockets[place].onclose({ code: 1006 });
        }
        globalThis.WebSocket = Real;
        for (const message of ['the first', 'the second']) answers.shift()({ message, final: true });
        await new Promise(requestAnimationFrame);
        return states;
        """,
        ["connecting", "connecting", "the second"],
    ),
    "a button is pressed again while it says that it has copied": (
        """
        const { copy, h } = await import('/static/playground/dom.js');
        const [later, real, button] = [[], setTimeout, h('button', {}, 'Share')];
        navigator.clipboard.writeText = async () => {};
        globalThis.setTimeout = (act) => later.push(act);
        for (const _ of [1, 2]) await copy('', button);
        globalThis.setTimeout = real;
        delete navigator.clipboard.writeText;
        const told = button.textContent;
        for (const act of later) act();
        return [told, button.textContent];
        """,
        ["Copied", "Share"],
    ),
    "an answer ends behind which a message of a chat that was cleared waited": (
        """
        const { Lane } = await import('/static/playground/lane.js');
        const { emptySetup } = await import('/static/playground/request.js');
        const sent = [];
        let end;
        const page = {
            facts: { tools: [], servers: [] }, mayTalk: () => true,
            send: ({ type, input }) => sent.push(input?.[0].content ?? type),
            answer: () => new Promise((answer) => (end = answer)),
        };
        const lane = new Lane('lane-9', 'Lane 9', emptySetup(), page);
        const response = { id: 'resp_1', status: 'in_progress', output: [], input: [] };
        lane.load({ id: 'resp_1', turns: [response] });
        lane.say({ role: 'user', content: 'waits' });
        const { tree } = lane;
        lane.clear();
        const last = { type: 'response.completed', response: { ...response, status: 'completed' } };
        end(new Response(`data: ${JSON.stringify(last)}\n\n`));
        while (!tree.get('resp_1').turn.isOver) await new Promise(requestAnimationFrame);
        await new Promise(requestAnimationFrame);
        const before = [...sent];
        (await import('/static/playground/toast.js')).undoLast();
        return [before, sent];
        """,
        [[], ["waits"]],
    ),
    "a file is read when another chat is open": (
        """
        const { Attached } = await import('/static/playground/attachments.js');
        const attached = new Attached({ setup: null, changed: () => {}, refuse: () => {} });
        attached.add([new File(['text'], 'notes.txt', { type: 'text/plain' })]);
        attached.restore([]);
        await attached.done;
        return attached.all.map(({ name }) => name);
        """,
        [],
    ),
    "a list is answered behind the one that was asked for later": (
        """
        const { Newest } = await import('/static/playground/asking.js');
        const answers = [];
        const ask = (path, { signal }) => new Promise((answer, refuse) => {
            answers.push(() => answer(path));
            signal.addEventListener('abort', () => refuse(signal.reason));
        });
        const newest = new Newest({ ask });
        const told = ['first', 'second'].map((path) => newest.ask(path).catch(({ name }) => name));
        for (const answer of answers.reverse()) answer();
        return Promise.all(told);
        """,
        ["AbortError", "second"],
    ),
}


@pytest.mark.parametrize("when", LATE)
def test_what_comes_late_changes_nothing(modules: Playground, when: str) -> None:
    script, told = LATE[when]
    assert modules.page.evaluate(f"async () => {{{script}}}") == told


def test_what_is_prepared_before_an_answer_is_said(modules: Playground) -> None:
    shown = """async () => {
        const { Lane } = await import('/static/playground/lane.js');
        const { emptySetup } = await import('/static/playground/request.js');
        const page = { facts: { tools: [], servers: [] }, mayTalk: () => true, send: () => true };
        const server = { server_label: 'wiki', require_approval: 'never', on: true };
        const saying = (changes) => {
            const lane = new Lane('lane-9', 'Lane 9', { ...emptySetup(), ...changes }, page);
            lane.say({ role: 'user', content: 'next' });
            return lane.turns[0].waiting.textContent;
        };
        const switched = ['code_interpreter'];
        return [saying({}), saying({ switched }), saying({ switched, servers: [server] })];
    }"""
    assert modules.page.evaluate(shown) == [
        "Sent",
        "Sent. The server prepares the code interpreter",
        "Sent. The server prepares the code interpreter and asks wiki for tools",
    ]


def test_the_empty_page_says_what_turns_on_what_this_server_lacks(modules: Playground) -> None:
    shown = """async (facts) => {
        const { cards } = await import('/static/playground/suggestions.js');
        return cards(facts, () => {}).map((each) => [
            each.querySelector('h4').textContent,
            [...each.querySelectorAll('.card strong')].map((title) => title.textContent),
            [...each.querySelectorAll('.lacking span')].map((why) => why.textContent),
            [...each.querySelectorAll('.lacking a')].map((link) => link.getAttribute('href')),
        ]);
    }"""
    facts = {
        "tools": ["code_interpreter"],
        "sandbox_missing": "bubblewrap: it is not installed (apt install bubblewrap).",
    }
    assert modules.page.evaluate(shown, facts) == [
        ["Talk", ["Watch it stream", "Two lanes side by side"], [], []],
        [
            "Call tools",
            ["Answer a function by hand"],
            ["Not set up here. Set SEARCH_URL or SEARCH_MCP. More"],
            ["/docs/how-to/web-search.html"],
        ],
        [
            "Make something",
            [],
            [
                f"No sandbox is installed here. {facts['sandbox_missing']} More",
                "Not set up here. Set IMAGE_SERVICE_URL. More",
            ],
            ["/docs/how-to/code-interpreter.html", "/docs/how-to/images.html"],
        ],
    ]


def test_every_suggestion_is_sent_at_once(server: Server, page: Playground) -> None:
    titles = page.find(".card strong").all_inner_texts()
    assert len(titles) > 3
    for title in titles:
        page.open(server.url, anew=True)
        page.find(".card", has_text=title).click()
        expect(page.find(".asked").first).to_be_visible()
        expect(page.lane().locator(".composer textarea")).to_have_value("")


def test_the_page_of_the_api_can_be_read_in_the_dark(server: Server, browser: Browser) -> None:
    with opened(browser, dark=True) as page:
        page.goto(f"{server.url}/openapi")
        page.evaluate("() => [...document.querySelectorAll('section')].slice(2).forEach((each) => each.remove())")
        axe_finds_nothing(page, everything=False)


def test_what_is_approved_is_shown_as_it_is(modules: Playground) -> None:
    shown = """async (texts) => {
        const { laidOutExactly } = await import('/static/playground/dom.js');
        return texts.map(laidOutExactly);
    }"""
    texts = [
        '{"a": [1, "b c"]}',
        '{"id": 12345678901234567890}',
        '{"to": "me", "to": "you"}',
        '{"a": "\u202etxt"}',
        "no {",
    ]
    laid = '{\n  "a": [\n    1,\n    "b c"\n  ]\n}'
    escaped = '{\n  "a": "\\u202etxt"\n}'
    assert modules.page.evaluate(shown, texts) == [laid, texts[1], texts[2], escaped, texts[4]]


def test_of_millions_of_characters_the_beginning_is_laid_out(modules: Playground) -> None:
    shown = """async () => {
        const { Turn } = await import('/static/playground/turn.js');
        const input = [{ role: 'user', content: 'word '.repeat(1000000) }];
        const turn = new Turn(input, {});
        const text = turn.element.textContent;
        return [text.length, text.includes('4,980,000 more'), turn.input === input];
    }"""
    length, is_told, is_whole = modules.page.evaluate(shown)
    assert (length < 21_000, is_told, is_whole) == (True, True, True)


def test_ten_thousand_frames_are_a_few_elements(page: Playground) -> None:
    page.find("[data-do=events]").click()
    add = """async () => {
        const { Events } = await import('/static/playground/events.js');
        const events = new Events();
        const frame = { type: 'response.output_text.delta', stream_id: 'lane-1', delta: 'word ' };
        const text = JSON.stringify(frame);
        for (let n = 0; n < 10000; n += 1) events.add({ direction: 'in', text, frame, at: n });
        await new Promise(requestAnimationFrame);
        await new Promise(requestAnimationFrame);
    }"""
    page.page.evaluate(add)
    expect(page.find("#events-count")).to_have_text("10,000")
    assert page.find("#events-list .row").count() < 200


def test_a_denied_call_is_not_made(page: Playground) -> None:
    page.turn_on("tests")
    page.write('call say with "hello"')
    asked = page.ended(1).locator(".call", has_text="Approval wanted")
    asked.get_by_role("button", name="Deny").click()
    expect(asked.locator(".how")).to_have_text("denied")
    expect(page.ended(2).locator(".call", has_text="tests.say")).to_have_count(0)


def test_a_lane_is_warmed_up(page: Playground) -> None:
    page.lane().get_by_role("button", name="Warm up").click()
    expect(page.ended(1).locator("[data-measure=took]")).to_contain_text("Warmed up in")
    page.write("Hello")
    expect(page.ended(2).locator(".answer")).to_contain_text("user message 1")


def test_every_frame_is_listed(page: Playground) -> None:
    page.page.keyboard.press("Tab")  # away from the field
    page.find("[data-do=events]").click()
    page.write("repeat: frames")
    page.ended(1)
    rows = page.find("#events-list .row:not([hidden])")
    expect(rows.first.locator(".type")).to_have_text("create")
    expect(rows.filter(has_text="completed")).to_have_count(1)
    expect(rows.filter(has_text="completed").locator(".time")).to_contain_text("ms")
    rows.filter(has_text="output_text.done").click()
    expect(page.find("#frame-text")).to_contain_text('"text": "frames"')
    page.find("#events-list").press("ArrowDown")
    expect(page.find("#frame-title")).to_have_text("response.content_part.done")
    page.find("#events-filter").fill("created")
    expect(rows).to_have_count(1)


def test_what_the_web_says_is_cited(page: Playground) -> None:
    page.turn_on("Web search")
    page.write("search for shells")
    turn = page.ended(1)
    expect(turn.locator(".call .what")).to_have_text(["Web search", "Page opened"])
    expect(turn.locator(".answer sup.cite")).to_have_text("1")
    source = turn.locator(".answer .sources a")
    expect(source).to_have_text("On turtles")
    expect(source).to_have_attribute("href", re.compile(r"^http://127\.0\.0\.1:\d+/turtles$"))
    expect(source).to_have_attribute("rel", "noopener noreferrer nofollow")


def test_a_picture_is_drawn(page: Playground) -> None:
    page.find(".card", has_text="Draw a picture").click()
    call = page.ended(1).locator(".call", has_text="Image")
    expect(call.locator(".how")).to_have_text("drawn")
    expect(call.locator(".given")).to_contain_text("a lighthouse at dusk")
    image = call.locator("img")
    assert image.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") > 0
