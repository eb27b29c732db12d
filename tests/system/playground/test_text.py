"""What answers may contain: it is safe, the same however it grows, and its libraries are loaded when needed.

Only this finds markup that a real browser makes of a text, and a text that is too slow to lay out.
"""

import json
from typing import Any

import httpx
from playwright.sync_api import Browser, Route, expect

from tests.kit.server import Server
from tests.system.playground.browser import Playground, drawn, playground

FIRST_LOAD_BYTES = 250_000  # compressed, as they come over the wire
# Shows texts, each in an element of its own, and waits until all of them are whole. A text may be a list of pieces that
# come one after the other, each when the one before is shown.
SHOW = """
    const { renderText } = await import('/static/playground/text.js');
    const shown = (element) => new Promise((done) => {
        const look = () => (element.hasAttribute('aria-busy') ? requestAnimationFrame(look) : done());
        look();
    });
    const show = async (text) => {
        const element = document.createElement('div');
        element.className = 'prose';
        document.querySelector('.transcript').append(element);
        let all = '';
        for (const piece of Array.isArray(text) ? text : []) {
            renderText(element, (all += piece), { done: false });
            await shown(element);
        }
        renderText(element, Array.isArray(text) ? all : text);
        await shown(element);
        return element;
    };
"""


def run(page: Playground, body: str, given: object = None) -> Any:
    """Run a function's body in the page, which has `show` and `given`."""
    return page.page.evaluate(f"async (given) => {{ {SHOW} {body} }}", given)


EVERYTHING = """# A head with `code` and $E = mc^2$

Some **bold** *text* ~~gone~~, a [link](https://example.com "T"), https://example.com/a?b=c, main.py for $5 and $6.
A line that ends, and [one that is defined below][ref].

- [x] done
- [ ] open
  - nested `a`
  - nested **b**

    with a paragraph
- plain

10. one
2. two

   ```sh
   ls -l
   ```
3. three
* other list
---
| Left | Center | Right |
|:-----|:------:|------:|
| a | b | 1 |
| `c` | $x^2$ | 22 |
| [d](https://example.com) | **e** | |

````python title="x"
def f(x):
    ```
    return x
````
~~~
tilde

 ``` a
~~~
> quoted
lazily
> - a list
>
> 1. and
> ```
> code
> ```

\\[
\\int_0^\\infty e^{-x^2}\\,dx
+ b
\\]

    indented code

Text with \\(a_1 + b_1\\) and $$\\sum_i x_i$$ in it.
$$
\\begin{aligned} a &= b \\end{aligned}
$$
a
*
***b
#
#c
Head
===

[ref]: https://example.com/ref
"""
CLEAN = """(element) => {
    for (const each of element.querySelectorAll('code span[class^=hljs]')) each.replaceWith(...each.childNodes);
    element.normalize();
    return element.innerHTML.replace(/>\\n+</g, '><').replace(/\\n+</g, '<').replace(/ style="[^"]*"/g, '');
}"""


def first_difference(one: str, other: str) -> tuple[str, str]:
    """Return where two texts begin to differ."""
    place = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[place - 80 : place + 80], other[place - 80 : place + 80]


def test_a_text_that_grows_becomes_the_same_as_one_that_is_whole(page: Playground) -> None:
    """However it was cut: by characters where anything may become anything else, and by larger pieces."""
    body = f"""
        const channel = new MessageChannel(); // thousands of pictures, and nobody looks at them
        const waiting = [];
        channel.port1.onmessage = () => waiting.shift()(performance.now());
        window.requestAnimationFrame = (paint) => (waiting.push(paint), channel.port2.postMessage(0));
        const clean = {CLEAN};
        const cut = (size) => given.match(new RegExp(`[^]{{1,${{size}}}}`, 'gu'));
        const all = await Promise.all([given, ...[1, 17, 333].map(cut)].map(show));
        while (document.querySelector('.formula:not(:has(math))')) await new Promise(requestAnimationFrame);
        const [whole, ...parts] = all.map(clean);
        return [whole, parts.filter((each) => each !== whole)];
    """
    whole, others = run(page, body, EVERYTHING)
    assert [first_difference(whole, each) for each in others] == []
    for part in ('href="https://example.com/ref"', "<math", 'data-align="center"', 'class="task"', "<blockquote>"):
        assert part in whole


LONG = {
    "list": "- item **{n}** with `code`\n",
    "loose list": "1. item {n}\n\n   more of it\n\n",
    "table": "| {n} | a | b |\n",
    "quote": "> line {n}\n>\n",
    "code": "    line {n}\n",
    "paragraphs": "Some words with *{n}*.\n\n",
    "line": "many words with *emphasis {n}* and more, ",
}


def test_long_blocks_are_shown_whole_and_what_stands_is_not_made_again(modules: Playground) -> None:
    """A list, a table, a quote, code and paragraphs of a thousand lines: one element of each stays the same one."""
    heads = {"table": "| a | b | c |\n|---|---|---|\n", "code": "```py\n"}
    texts = {
        name: heads.get(name, "") + "".join(line.replace("{n}", str(n)) for n in range(1000))
        for name, line in LONG.items()
    }
    body = """
        const told = {};
        for (const [name, text] of Object.entries(given)) {
            const half = text.slice(0, text.length / 2);
            const element = await show([half]);
            const other = document.createElement('div');
            document.querySelector('.transcript').append(other);
            renderText(other, half, { done: false });
            await shown(other);
            const first = other.querySelector('li, tbody tr, blockquote > *, .lines, p');
            first.dataset.same = '1';
            renderText(other, text, { done: true });
            await shown(other);
            told[name] = [other.textContent.includes('999'), other.querySelectorAll('[data-same]').length,
                other.querySelectorAll('li, tbody tr, blockquote > *, .lines').length];
        }
        return told;
    """
    told = run(modules, body, texts)
    assert {name: each[:2] for name, each in told.items()} == {name: [True, 1] for name in LONG}
    counts = {name: each[2] for name, each in told.items()}
    assert counts == {
        "list": 1000, "loose list": 1000, "table": 1000, "quote": 1000, "code": 10, "paragraphs": 0, "line": 0
    }  # fmt: skip


HOSTILE = [
    "<script>window.broken = 1</script><img src=x onerror='window.broken = 1'><svg onload=window.broken=1>",
    '[a](javascript:window.broken=1) <javascript:window.broken=1> [b](data:text/html,x) [c](https://x/"onclick=1)',
    "[d]: javascript:window.broken=1\n[d] ![e](data:image/svg+xml,x) ![f](https://example.com/f.png) [g](//a.com)",
    '```html"><script>window.broken = 1</script>\n</code><svg onload=window.broken=1>\n```',
    '```"onmouseover=window.broken=1\nx\n```',
    "| <b>a | [x](vbscript:1) |\n|---|---|\n| <iframe src=javascript:window.broken=1> | ![i](x) |",
    "<form action=https://example.com><input name=q><button>Go</button></form><style>*{display:none}</style>",
    '<a id="lanes" name="state">x</a> <img name=getElementById> [h](https://example.com "\\" onclick=1")',
    "｜\u00961\u0097｜ **｜\u00962\u0097｜**",
    "$\\href{javascript:window.broken=1}{x}$ $\\htmlClass{link}{x}$ $\\style{position:fixed}{x}$ $\\class{link}{x}$",
    "$\\includegraphics{https://example.com/x.png}$ $\\text{<img src=x onerror=window.broken=1>}$ $\\id{lanes}{x}$",
    "$\\def\\a{\\a\\a}\\a$ $\\rule{9999em}{9999em}$ $\\hspace{-9999em}x$ $\\color{red;position:fixed}{x}$ $\\ref{a}$",
    "$$" + "{" * 2000 + "}" * 2000 + "$$ $$" + "\\sqrt{" * 300 + "x" + "}" * 300 + "$$",
]


def test_hostile_text_becomes_words_and_known_links(modules: Playground) -> None:
    body = """
        const found = [];
        for (const each of given) found.push(...(await show(each)).querySelectorAll('*'));
        await new Promise((done) => setTimeout(done, 0));
        await document.fonts.ready;
        const bad = /^(SCRIPT|IMG|IFRAME|SVG|OBJECT|STYLE|FORM|TEXTAREA|SELECT|LINK|META|BASE)$/iu;
        const attributes = found.flatMap((each) => [...each.attributes]);
        const links = found.filter((each) => each.hasAttribute('href'));
        return {
            tags: found.filter((each) => bad.test(each.tagName)).length,
            named: attributes.filter(({ name }) => /^on|^(?:id|name|src|srcset|action)$/u.test(name)).length,
            links: [...new Set(links.map((each) => new URL(each.href).protocol))],
            rels: [...new Set(links.map((each) => `${each.tagName} ${each.rel} ${each.target}`))],
            marks: document.querySelectorAll('.cite').length,
            placed: found.filter((each) => getComputedStyle(each).position === 'fixed').length,
            broken: window.broken ?? 0,
        };
    """
    told = run(modules, body, HOSTILE)
    assert told == {
        "tags": 0,
        "named": 0,
        "links": ["https:"],
        "rels": ["A noopener noreferrer nofollow _blank"],
        "marks": 0,
        "placed": 0,
        "broken": 0,
    }


ENDLESS = [
    "a\n", "**a** ", "`a", "**a", "~~a", "[a](", "[", "_a*", "**_~~", "> ", "- a\n", "|a", "https://", "```\n", "$a ",
    "\\[a\n", "\\(", "$$\n", "- ", "1) ", "[a]: b\n", "｜", "&", "<a ", "\\sqrt{", "#", "\t", "![", "*", "~",
]  # fmt: skip


def test_what_is_asked_for_again_is_drawn_last(modules: Playground) -> None:
    """A lane scrolls to its end: it asks before something comes, and again behind it."""
    order = modules.page.evaluate("""async () => {
        const { soon } = await import('/static/playground/dom.js');
        const order = [], scroll = () => order.push('scroll'), draw = () => order.push('draw');
        for (const each of [scroll, draw, scroll]) soon(each);
        await new Promise((done) => soon(done));
        return order;
    }""")
    assert order == ["draw", "scroll"]


def test_any_text_is_shown_in_time_that_its_length_takes(modules: Playground) -> None:
    """Were it the square of it, the page would not answer before the test is given up."""
    body = """
        const lengths = [];
        for (const each of given) {
            const element = await show(each.repeat(1500));
            lengths.push(element.textContent.length);
            element.remove();
        }
        return lengths;
    """
    assert all(length >= 0 for length in run(modules, body, ENDLESS))


def test_tasks_tables_images_and_lines(modules: Playground) -> None:
    body = """
        const element = await show(given);
        const all = (selector, what) => [...element.querySelectorAll(selector)].map(what);
        return {
            tasks: all('li.task', (each) => [each.textContent.trim(), each.querySelector('input').checked]),
            items: all('li', (each) => each.textContent.trim()),
            cells: all('td', (each) => each.dataset.align ?? ''),
            links: all('a', (each) => [each.textContent, each.href]),
            images: all('img', () => 1).length,
            breaks: all('br', () => 1).length,
            heads: all('h3', (each) => each.dataset.level),
        };
    """
    text = (
        "## A\n\n- [x] done\n- [ ] **open**\n- [y] a word\n\n| a | b | c |\n|:--|:-:|--:|\n| 1 | 2 | 3 |\n\n"
        "![A cat](https://example.com/cat.png) and\n![](https://example.com/dog.png), wow!"
    )
    assert run(modules, body, text) == {
        "tasks": [["done", True], ["open", False]],
        "items": ["done", "open", "[y] a word"],
        "cells": ["", "center", "right"],
        "links": [
            ["Image: A cat", "https://example.com/cat.png"],
            ["Image: https://example.com/dog.png", "https://example.com/dog.png"],
        ],
        "images": 0,  # a stranger's server would hear who reads an answer
        "breaks": 1,  # models mean their line breaks
        "heads": ["2"],
    }


CITED = "The shell 🐢 is **bone.** See `code` and [the table](sandbox:/mnt/data/table.csv).\n\n```\nx\n```"


def test_citations_are_numbered_marks_and_a_list_of_sources(modules: Playground) -> None:
    def after(words: str) -> int:
        return CITED.index(words) + len(words)

    turtles = {"type": "url_citation", "url": "https://example.com/turtles", "title": "Turtles <b>", "start_index": 0}
    notes = [
        {**turtles, "end_index": after("shell 🐢")},
        {**turtles, "end_index": after("bone.*")},
        {"type": "file_citation", "file_id": "file-1", "filename": "shells.pdf", "index": after("`code")},
        {
            "type": "container_file_citation", "container_id": "cntr_1", "file_id": "cfile_1", "filename": "table.csv",
            "start_index": 0, "end_index": after("table.csv"),
        },
        {"type": "url_citation", "url": "javascript:alert(1)", "title": "No", "end_index": 9999},
    ]  # fmt: skip
    body = """
        const { itemView } = await import('/static/playground/items.js');
        const views = ['msg_1', 'msg_2'].map((id) => {
            const view = itemView({ type: 'message', id, content: [] }, null);
            document.querySelector('.transcript').append(view.element);
            view.delta({ type: 'response.output_text.delta', content_index: 0, delta: given.text });
            const content = [{ type: 'output_text', text: given.text, annotations: given.notes }];
            view.update({ type: 'message', id, status: 'completed', content }, true);
            return view;
        });
        for (const { body } of views) await shown(body);
        const [{ element, body }] = views;
        const files = [];
        const take = (event) => (event.stopImmediatePropagation(), files.push(event.detail.path));
        window.addEventListener('download', take, { capture: true, once: true }); // there is no such file to load
        element.querySelector('.sources button').click();
        element.querySelector('.cite button[data-source="2"]').click();
        return {
            text: body.textContent,
            marks: [...body.querySelectorAll(".cite")].map((m) => [m.previousSibling.textContent, m.innerText]),
            sources: [...element.querySelectorAll('.sources li')].map((each) => each.textContent),
            links: [...element.querySelectorAll('.sources a')].map((each) => [each.href, each.rel]),
            ids: document.querySelectorAll('.transcript [id]').length,
            focus: document.activeElement === element.querySelectorAll('.sources li')[1],
            files,
        };
    """
    told = run(modules, body, {"text": CITED, "notes": notes})
    assert told["marks"] == [["The shell 🐢", "1"], ["bone.", "1"], ["code", "2"], ["the table", "3"]]
    assert "\u0096" not in told["text"]
    assert "｜" not in told["text"]
    assert told["sources"] == [
        "Turtles <b> example.com",
        "shells.pdf a file that was searched",
        "table.csv a file that code has written",
        "No ",
    ]
    assert told["links"] == [["https://example.com/turtles", "noopener noreferrer nofollow"]]
    assert told["files"] == ["/v1/containers/cntr_1/files/cfile_1/content"]
    assert (told["ids"], told["focus"]) == (0, True)


def test_libraries_come_when_they_are_needed_and_the_first_load_is_small(server: Server, browser: Browser) -> None:
    with playground(browser) as page:
        page.open(server.url)
        page.find("#model option").first.wait_for(state="attached")
        loaded = """() => [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
            .map(({ name, transferSize, decodedBodySize }) => [name, transferSize, decodedBodySize])"""
        first = page.page.evaluate(loaded)
        assert sum(size for _, size, _ in first) <= FIRST_LOAD_BYTES
        assert sum(size for _, size, _ in first) < sum(whole for _, _, whole in first) / 2, "it is compressed"

        def libraries() -> set[str]:
            requests = {name for name, *_ in page.page.evaluate(loaded)}
            return {
                name.split("/vendor/")[1].split("/")[0].rpartition("-")[0] for name in requests if "/vendor/" in name
            }

        assert libraries() == set()
        page.write("repeat: just **words**")
        expect(page.ended(1).locator(".answer strong")).to_have_text("words")
        assert libraries() == {"markdown-it", "dompurify"}
        page.write("repeat: ```python\nfor x in y: pass\n```")
        expect(page.ended(2).locator(".answer .hljs-keyword")).to_have_text(["for", "in", "pass"])
        assert "temml" not in libraries()
        page.write("repeat: so $x^2$")
        expect(page.ended(3).locator(".answer math")).to_have_text("x2")
        assert libraries() >= {"markdown-it", "dompurify", "temml"}
        assert page.problems == []


def test_static_files_are_compressed_and_libraries_are_kept_for_a_year(server: Server) -> None:
    manifest = json.loads(httpx.get(f"{server.url}/static/vendor/manifest.json").text)
    library = manifest["libraries"][0]
    file = next(each for each in library["files"] if "." in each)
    path = f"/static/vendor/{library['name']}-{library['version']}/{file}"
    packed = httpx.get(f"{server.url}{path}")
    plain = httpx.get(f"{server.url}{path}", headers={"accept-encoding": "identity"})
    assert packed.content == plain.content
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(plain.content) / 2
    assert "content-encoding" not in plain.headers
    assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert "immutable" in packed.headers["cache-control"]
    assert "javascript" in packed.headers["content-type"]
    again = httpx.get(f"{server.url}{path}", headers={"if-modified-since": packed.headers["last-modified"]})
    assert (again.status_code, again.content) == (304, b"")


COPIED = "async (text) => await navigator.clipboard.readText() === text"


def test_code_is_copied_as_it_was_written_and_so_is_an_answer(server: Server, browser: Browser) -> None:
    with playground(browser) as page:
        page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.open(server.url)
        code = "if x:\n\n    pass  # <b>\n"
        answer = f"Do *this*:\n\n```python\n{code}```"
        page.write(f"repeat: {answer}")
        turn = page.ended(1)
        expect(turn.locator(".answer .hljs-comment")).to_have_text("# <b>")
        turn.locator(".block").get_by_role("button", name="Copy").click()
        page.page.wait_for_function(COPIED, arg=code.rstrip("\n"))
        turn.locator(".actions").get_by_role("button", name="Copy").click()
        page.page.wait_for_function(COPIED, arg=answer)
        assert page.problems == []


def test_what_colours_code_is_stopped_when_it_takes_too_long(page: Playground) -> None:
    """A pattern that never ends is the worker's trouble: the code stays as it is, and the next one is coloured."""
    page.page.route(
        "**/highlight.min.js",
        lambda route: route.fulfill(
            content_type="text/javascript",
            body="""export default {
                getLanguage: () => true,
                highlight(code) {
                    while (code.includes('endless')) {}
                    return { value: `<span class="hljs-keyword">${code}</span>` };
                },
            };""",
        ),
    )
    page.page.reload()
    page.find("#state[data-state=open]").wait_for()
    body = """
        const [endless, other] = [await show('```py\\nendless\\n```'), await show('```py\\nother\\n```')];
        const looked = () => other.querySelector('.hljs-keyword');
        while (!looked()) await new Promise(requestAnimationFrame);
        return [endless.querySelector('code').textContent.trim(), endless.querySelectorAll('.hljs-keyword').length];
    """
    assert run(page, body) == ["endless", 0]
    page.page.unroute("**/highlight.min.js")


def test_an_answer_is_followed_to_its_end_when_its_library_comes_late(server: Server, browser: Browser) -> None:
    waiting: list[Route] = []
    is_held = True

    def hold(route: Route) -> None:
        if is_held:
            waiting.append(route)
        else:
            route.continue_()

    with playground(browser) as page:
        page.page.route("**/markdown-it*", hold)
        page.open(server.url)
        page.write("repeat: " + "# A head\n" * 60)
        page.lane().locator(".turn[data-status]").wait_for()
        expect(page.lane().locator(".answer .prose[data-plain]")).to_contain_text("# A head")
        is_held = False
        for each in waiting:
            each.continue_()
        drawn(page.lane().locator(".turn"))
        page.page.wait_for_function(AT_ITS_END)


AT_ITS_END = """() => {
    const { scrollTop, scrollHeight, clientHeight } = document.querySelector('.transcript');
    return scrollHeight - scrollTop - clientHeight < 2;
}"""


def test_without_its_library_an_answer_is_plain_text(server: Server, browser: Browser) -> None:
    with playground(browser) as page:
        page.page.route("**/markdown-it*", lambda route: route.abort())
        page.open(server.url)
        page.write("repeat: **words**")
        expect(page.ended(1).locator(".answer .prose")).to_have_text("**words**")
        expect(page.ended(1).locator(".numbers")).to_be_visible()
        assert any("plain text" in problem for problem in page.problems)
