"""The setup of the playground, and what one takes away from it: schemas, fields, lists, links, code and files."""

import base64
import contextlib
import io
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from playwright.sync_api import Browser, Locator, expect

from responses_app.protocol.requests.create_fields import Fields, ReasoningOptions, TextOptions
from responses_app.protocol.stop_strings import MAX_STOP, MAX_STOPS
from tests.kit.browser import SIZES, axe_finds_nothing, is_wider_than_its_window
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.server import Server, clean_environ
from tests.system.playground.browser import Playground, playground

SECONDS = 60  # bound of what is waited for beside the page
WITHOUT_CONTROL = {  # the lane sets them, or they are written as extra fields
    *("model", "instructions", "previous_response_id", "conversation", "store", "stream", "background"),
    *("background_options", "generate", "reasoning", "text", "stream_options", "include", "prompt_cache_retention"),
    *("prompt_cache_options", "context_management", "request_id", "structured_outputs", "priority", "cache_salt"),
    *("enable_response_messages", "previous_input_messages", "multi_agent", "return_token_ids"),
}


def run(page: Playground, module: str, code: str, *given: object) -> Any:
    """Return what JavaScript makes of a module of the page, `it`."""
    return page.page.evaluate(
        f"async (given) => {{ const it = await import('/static/playground/{module}.js'); return ({code})(...given); }}",
        list(given),
    )


def request_of(page: Playground) -> dict[str, Any]:
    """Return the request that the setup makes, as code that can be copied says it."""
    request = json.loads(shlex.split(copied(page, "curl"))[-1])
    page.page.keyboard.press("Escape")
    return {name: value for name, value in request.items() if name not in ("input", "stream")}


def test_each_field_has_the_bounds_of_the_server(modules: Playground) -> None:
    shown = {field["name"]: field for field in run(modules, "fields", "() => it.FIELDS")}
    nested = {"verbosity": TextOptions.model_fields["verbosity"], "summary": ReasoningOptions.model_fields["summary"]}
    assert set(shown) == {*Fields.model_fields, *nested, "tool_choice"} - WITHOUT_CONTROL
    names = {"min": "ge", "max": "le", "above": "gt", "longest": "max_length"}
    for name, field in {**Fields.model_fields, **nested}.items():
        if name not in shown or name in ("stop", "stop_token_ids", "logit_bias", "metadata"):
            continue
        taken = {
            key: getattr(each, key)
            for each in field.metadata
            for key in ("ge", "le", "gt", "lt", "max_length")
            if getattr(each, key, None) is not None
        }
        if "lt" in taken:
            taken["le"] = taken.pop("lt") - 1
        if name == "seed":
            taken = {}  # more than the whole numbers that JavaScript has
        assert {names[key]: shown[name][key] for key in names if key in shown[name]} == taken, name
    assert (shown["stop"]["most"], shown["stop"]["longest"]) == (MAX_STOPS, MAX_STOP)


WRONG = {  # texts that are no JSON: line, column, and a word of what is said
    "": (1, 1, "Nothing"),
    "{": (1, 2, "name"),
    '{"a" 1}': (1, 6, "colon"),
    '{"a": 1,}': (1, 8, "comma"),
    '{\n  "a": 1\n  "b": 2\n}': (3, 3, "comma or }"),
    '{"a": 1, "a": 2}': (1, 10, "twice"),
    "[1, 2": (1, 6, "] is missing"),
    "[01]": (1, 2, "number"),
    "['a']": (1, 2, "double quotes"),
    "[True]": (1, 2, "true, false"),
    '["a\n"]': (1, 2, "no double quote"),
    r'["\x"]': (1, 3, "backslash"),
    "[1] 2": (1, 5, "follow"),
    "// a\n1": (1, 1, "comments"),
    "[" * 300 + "]" * 300: (1, 202, "nested"),
}
RIGHT = ['{"a": [1, -2.5e+3, "x\\u00e4\\n", null, true, {}], "b": {}}', " [ ] ", "0", '"\\"\\\\"', "\t\n1e5\r"]


def test_where_a_text_is_no_json_is_said(modules: Playground) -> None:
    told = run(modules, "json", "(texts) => texts.map(it.problemOf)", [*WRONG, *RIGHT])
    assert told[len(WRONG) :] == [None] * len(RIGHT)
    for text, problem in zip(WRONG, told, strict=False):
        line, column, word = WRONG[text]
        assert (problem["line"], problem["column"]) == (line, column), text[:40]
        assert word in problem["message"], text[:40]
        if "twice" not in word and "nested" not in word:
            with pytest.raises(ValueError, match=r"."):
                json.loads(text)


def forgive_refusals(page: Playground) -> None:
    """Forget what the console says of the answers with which the server refused what was written."""
    assert all("400 (Bad Request)" in problem for problem in page.problems)
    page.problems.clear()


def choose_schema(page: Playground) -> Locator:
    page.find(".segments label", has_text="Schema").click()
    page.find("#edit-schema").click()
    return page.find("#schema")


def test_an_answer_is_held_to_a_schema_that_is_written_here(page: Playground) -> None:
    dialog = choose_schema(page)
    field, told = dialog.locator("textarea"), dialog.locator(".json-told")
    expect(told).to_have_text("The server accepts this schema: every answer will fit it.")
    field.fill('{\n  "type": "object",\n}')
    expect(told).to_have_text("Line 2, column 19: Nothing follows this comma: remove it before }.")
    dialog.get_by_role("button", name="Go there").click()
    assert field.evaluate("each => [each.selectionStart, each === document.activeElement]") == [20, True]
    dialog.get_by_role("button", name="Keep").click()
    expect(dialog.locator(".wrong")).to_contain_text("see below the field")
    field.fill('{"type": "object", "properties": {"a": {"not": {}}}}')
    expect(told).to_contain_text("/properties/a has 'not', which forbids values: that cannot be enforced.")
    field.fill(
        '{"type":"object","properties":{"sea":{"type":"string"}},"required":["sea"],"additionalProperties":false}'
    )
    dialog.get_by_role("button", name="Format").click()
    expect(field).to_have_value(json.dumps(json.loads(field.input_value()), indent=2))
    expect(told).to_contain_text("accepts this schema")
    dialog.locator("[name=name]").fill("a sea")
    dialog.get_by_role("button", name="Keep").click()
    expect(dialog.locator(".wrong")).to_contain_text("letters, digits")
    dialog.locator("[name=name]").fill("sea")
    dialog.get_by_role("button", name="Keep").click()
    page.page.reload()
    expect(page.find("#schema-name")).to_have_text("sea")
    assert request_of(page)["text"]["format"]["name"] == "sea"
    page.find("#state[data-state=open]").wait_for()
    page.write("Which sea?")
    assert set(json.loads(page.ended(1).locator(".answer").inner_text())) == {"sea"}
    forgive_refusals(page)


def test_a_new_line_keeps_its_indentation_and_an_example_can_be_undone(page: Playground) -> None:
    dialog = choose_schema(page)
    field = dialog.locator("textarea")
    field.fill("  {")
    field.press("End")
    field.press("Enter")
    expect(field).to_have_value("  {\n    ")
    dialog.get_by_role("button", name="Insert example").click()
    expect(field).to_have_value("""{
  "type": "object",
  "properties": {
    "answer": {
      "type": "string"
    },
    "certainty": {
      "type": "number",
      "minimum": 0,
      "maximum": 1
    }
  },
  "required": [
    "answer",
    "certainty"
  ],
  "additionalProperties": false
}""")
    field.press("Control+z")
    expect(field).to_have_value("  {\n    ")


SET = {
    "temperature": ("0.2", 0.2),
    "top_p": ("0.9", 0.9),
    "top_k": ("40", 40),
    "min_p": ("0.05", 0.05),
    "presence_penalty": ("-1", -1),
    "frequency_penalty": (".5", 0.5),
    "repetition_penalty": ("1.1", 1.1),
    "seed": ("7", 7),
    "logit_bias": ('{"17": -5}', {"17": -5}),
    "top_logprobs": ("2", 2),
    "max_output_tokens": ("200", 200),
    "stop": ("###\\n\nEND", ["###\n", "END"]),
    "stop_token_ids": ("1, 2", [1, 2]),
    "prompt_cache_key": ("k", "k"),
    "metadata": ('{"order": "17"}', {"order": "17"}),
}
CHOSEN = {"truncation": "auto", "parallel_tool_calls": "false", "ignore_eos": "false", "service_tier": "flex"}


def test_every_field_reaches_the_server(page: Playground) -> None:
    for title in ("Sampling", "Length and end", "Tool use", "More"):
        page.group(title)
    for name, (text, _) in SET.items():
        page.find(f"[name={name}]").fill(text)
    for name, value in CHOSEN.items():
        page.find(f"[name={name}]").select_option(value)
    page.find("[name=verbosity]").select_option("low")
    request = request_of(page)
    assert {name: request[name] for name in SET} == {name: value for name, (_, value) in SET.items()}
    assert {name: request[name] for name in CHOSEN} == {**CHOSEN, "parallel_tool_calls": False, "ignore_eos": False}
    assert (request["text"], request["include"]) == ({"verbosity": "low"}, ["message.output_text.logprobs"])
    assert page.find(".wrong:not(:empty)").count() == 0
    page.find("[name=top_logprobs]").fill("")  # the demo engine has none
    page.write("repeat: all of them")
    expect(page.ended(1).locator(".answer")).to_have_text("all of them")


def test_a_value_out_of_bounds_is_told_at_its_field(page: Playground) -> None:
    sampling = page.group("Sampling")
    expect(sampling.locator(".set")).to_have_text("Default")
    sampling.locator("[name=temperature]").fill("3")
    expect(page.find("#temperature-wrong")).to_have_text("A number from 0 to 2.")
    sampling.locator("[name=top_p]").fill("0")
    expect(page.find("#top_p-wrong")).to_have_text("")
    sampling.locator("[name=repetition_penalty]").fill("0")
    expect(page.find("#repetition_penalty-wrong")).to_have_text("A number above 0.")
    sampling.locator("[name=repetition_penalty]").fill("")
    sampling.locator("[name=seed]").fill("x")
    expect(page.find("#seed-wrong")).to_have_text("A whole number.")
    expect(sampling.locator("summary .set")).to_have_text("Temperature 3, Top p 0, Seed x")
    page.write("Hello")  # nothing is dropped silently: the server refuses it, too
    expect(page.ended(1).locator(".problem")).to_contain_text("temperature")


def test_any_other_field_is_written_as_json(page: Playground) -> None:
    page.group("More")
    page.find("#edit-extra").click()
    dialog = page.find("#extra")
    field, told = dialog.locator("textarea"), dialog.locator(".json-told")
    field.fill('{"input": "x"}')
    expect(told).to_have_text("The page sets 'input' itself. Leave it out.")
    field.fill('{"temprature": 1}')
    expect(told).to_contain_text("Did you mean 'temperature'?")
    field.fill('{"structured_outputs": {"choice": ["yes", "no"]}}')
    expect(told).to_have_text("The server accepts these fields.")
    dialog.get_by_role("button", name="Keep").click()
    expect(page.group("More").locator("summary .set")).to_have_text("structured_outputs")
    page.write("Is it so?")
    assert page.ended(1).locator(".answer").inner_text() in ("yes", "no")
    forgive_refusals(page)


def test_stores_and_files_are_picked_from_lists(server: Server, page: Playground) -> None:
    with OpenAI(base_url=server.base_url, api_key="none") as client:
        file = client.files.create(file=("reef.txt", b"The reef is long."), purpose="assistants")
        store = client.vector_stores.create(name="picked reef", file_ids=[file.id])
        other = client.vector_stores.create(name="picked lake")
    page.turn_on("File search")
    page.find("[name=vector_stores]").fill(other.id)
    page.group("Server tools").get_by_role("button", name="Choose vector stores").click()
    picker = page.find("#picker")
    expect(picker.get_by_label("picked lake")).to_be_checked()
    page.find("#picker-search").fill("REEF picked")
    expect(picker.locator("li:visible")).to_have_count(1)
    expect(picker.locator("li:visible small")).to_contain_text(f"{store.id} · 1 file")
    picker.get_by_label("picked reef").check()
    page.find("#picker-pasted").fill("a b!")
    page.find("#picker-keep").click()
    expect(page.find("#picker-wrong")).to_contain_text("is not an id")
    page.find("#picker-pasted").fill("vs_pasted")
    page.find("#picker-keep").click()
    (tool,) = request_of(page)["tools"]
    assert sorted(tool["vector_store_ids"]) == sorted([store.id, other.id, "vs_pasted"])


def test_tools_of_a_server_are_allowed_and_approved_one_by_one(page: Playground) -> None:
    """Finds a choice in the list of tools that the request, or the server, reads as another one."""
    page.turn_on("tests")
    servers = page.group("MCP servers")
    servers.get_by_role("button", name="Tools of tests").click()
    tools = servers.get_by_role("list", name="Tools of tests")
    expect(tools.locator("li").first).to_be_visible()
    for name in tools.locator(".pick code").all_inner_texts():
        if name not in ("say", "add"):
            tools.locator("li", has=page.find(f'code:text-is("{name}")')).locator(".pick input").uncheck()
    expect(servers.get_by_role("button", name="Tools of tests")).to_have_text("2 tools")
    servers.get_by_label("Approval of calls of tests").select_option("Ask per tool")
    tools.get_by_label("Never ask before say").check()
    (tool,) = request_of(page)["tools"]
    assert tool["allowed_tools"] == ["add", "say"]
    assert tool["require_approval"] == {"never": {"tool_names": ["say"]}}
    page.write('call say with "unasked"')
    turn = page.ended(1)
    expect(turn.locator(".listed summary")).to_contain_text("2 tools")
    expect(turn.locator(".answer")).to_contain_text("unasked")
    expect(turn.locator(".asks")).to_have_count(0)


def link_of(setup: object) -> str:
    return f"#setup={base64.urlsafe_b64encode(json.dumps(setup).encode()).decode()}"


def test_a_setup_goes_on_as_a_link(server: Server, page: Playground) -> None:
    page.find("[name=instructions]").fill("Rhyme. – ü 🐢")
    page.group("Sampling").locator("[name=temperature]").fill("0.3")
    page.page.evaluate("() => { navigator.clipboard.writeText = (text) => (window.copied = text); }")
    page.find("#setup-link").click()
    link = page.page.evaluate("copied")
    page.find("#setup-reset").click()
    expect(page.find("[name=instructions]")).to_have_value("")
    page.page.goto(link)  # the page is there already: it hears of it
    dialog = page.find("#preset")
    expect(dialog.locator("dt")).to_have_text(["Instructions", "Temperature"])
    expect(dialog.locator("pre")).to_have_text(
        ["nothing, as the server does by default", "Rhyme. – ü 🐢", "nothing, as the server does by default", "0.3"]
    )
    dialog.get_by_role("button", name="Do not apply").click()
    expect(page.page).not_to_have_url(re.compile("#"))  # the browser says a moment later that the dialog closed
    expect(page.find("[name=instructions]")).to_have_value("")
    page.page.goto(link)
    dialog.get_by_role("button", name="Apply", exact=True).click()
    expect(page.find("[name=instructions]")).to_have_value("Rhyme. – ü 🐢")
    page.find("#setup-replaced").get_by_role("button", name="Undo").click()
    expect(page.find("[name=instructions]")).to_have_value("")


HOSTILE = {
    "#setup=%%%": "It is cut, or was changed.",
    "#setup=e30": "",
    f"#setup={'A' * 20_000}": "The link is too long.",
}


def test_a_hostile_link_changes_nothing_by_itself(server: Server, page: Playground) -> None:
    wicked = {"__proto__": {"x": 1}, "nobody": 1}
    cases = {**HOSTILE, link_of(wicked): "This page knows no"}
    cases[link_of({"functions": [{"type": "mcp", "server_url": "https://evil.example/"}]})] = "'functions'"
    cases[link_of({"servers": [{"server_label": "a", "server_url": "javascript:alert(1)"}]})] = "'servers'"
    cases[link_of({"extra": {"tools": []}})] = "'extra'"
    for fragment, said in cases.items():
        page.page.goto(f"{server.url}/{fragment}")
        expect(page.find("#preset-apply")).to_be_hidden()
        expect(page.find("#preset-wrong")).to_contain_text(said)
        page.page.keyboard.press("Escape")
    server_by_link = {
        "server_label": "evil",
        "server_url": "https://user:secret@evil.example/mcp?key=1",
        "require_approval": "never",
        "authorization": "x",
    }
    link = link_of({"servers": [server_by_link], "instructions": "a\u202eb"})
    page.page.goto(f"{server.url}/{link}")
    expect(page.find("#preset-approvals")).to_be_visible()
    expect(page.find("#preset-changes")).to_contain_text("a\\u202eb")
    page.find("#preset-apply").click()
    (tool,) = request_of(page)["tools"]
    assert tool == {
        "type": "mcp",
        "server_label": "evil",
        "server_url": "https://evil.example/mcp",
        "require_approval": "always",
    }


def test_a_setup_is_saved_under_a_name(server: Server, page: Playground) -> None:
    page.find("[name=instructions]").fill("Rhyme.")
    page.find("#open-prompts").click()
    dialog, name = page.find("#prompts"), page.find("#prompts-name")
    name.press("Enter")
    expect(page.find("#prompts-wrong")).to_have_text("Write a name first.")
    name.fill("a rhymer")
    dialog.get_by_role("button", name="Save").click()
    row = dialog.locator("li", has_text="a rhymer")
    expect(row).to_be_visible()
    expect(dialog.get_by_role("button", name="Replace")).to_be_visible()
    dialog.get_by_role("button", name="Close").click()
    expect(page.find("#setup-prompt")).to_have_text("a rhymer")
    page.find("#setup-reset").click()
    page.find("#open-prompts").click()
    row.get_by_role("button", name="Load").click()
    expect(page.find("[name=instructions]")).to_have_value("Rhyme.")
    page.find("#open-prompts").click()
    row.get_by_role("button", name="Delete: a rhymer").click()
    row.get_by_role("button", name="Keep it").click()
    expect(row.get_by_role("button", name="Delete: a rhymer")).to_be_focused()
    row.get_by_role("button", name="Delete: a rhymer").click()
    row.get_by_role("button", name="Delete it").click()
    expect(row).to_have_count(0)
    expect(page.find("#prompts-none")).to_be_visible()
    assert httpx.get(f"{server.base_url}/playground/prompts", timeout=SECONDS).json()["data"] == []


def copied(page: Playground, form: str, how: str | None = None) -> str:
    """Return what the dialog gives in one form."""
    if not page.find("#copy").is_visible():
        page.find("[data-do=copy]").click()
    page.find("#copy").get_by_role("tab", name=form).click()
    if how:
        page.find("#copy-how").select_option(how)
    return page.find("#copy-text").inner_text()


def said_by(code: str, form: str, folder: Path) -> str:
    """Run code that was copied; return the text of the answer. Python runs it here, where the SDK is imported."""
    if form == "Python":
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, "copied.py", "exec"), {"__name__": "__main__"})
        return printed.getvalue()
    file = folder / "copied.sh"
    file.write_text(code)
    ended = subprocess.run(
        ["sh", str(file)], capture_output=True, text=True, env=clean_environ(), timeout=SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stderr
    events = [json.loads(line[6:]) for line in ended.stdout.splitlines() if line.startswith("data: {")]
    assert events[-1]["type"] == "response.completed", events[-1]
    return str(events[-1]["response"]["output"][-1]["content"][0]["text"])


def test_copied_code_goes_on_with_the_conversation(page: Playground, tmp_path: Path) -> None:
    page.group("Sampling").locator("[name=top_k]").fill("40")  # no parameter of the SDK for Python
    page.write("first")
    page.ended(1)
    page.write("second")
    page.ended(2)
    page.lane().locator(".composer textarea").fill("third")
    for how, form in (("id", "Python"), ("items", "curl")):
        code = copied(page, form, how)
        assert ("previous_response_id" in code) is (how == "id")
        assert "user message 3" in said_by(code, form, tmp_path)
    assert "user message 2" in said_by(copied(page, "curl", "again"), "curl", tmp_path)
    page.page.keyboard.press("Escape")


def test_copied_code_answers_the_calls_that_wait(page: Playground, tmp_path: Path) -> None:
    page.turn_on("tests")
    page.find(".card", has_text="Answer a function by hand").click()
    page.ended(1)
    for form, how in (("Python", "id"), ("curl", "items")):
        code = copied(page, form, how)
        expect(page.find("#copy-hint")).to_contain_text("Put the outputs of the calls in")
        assert "It snows." in said_by(code.replace("What get_weather gives back", "It snows."), form, tmp_path)
    page.page.keyboard.press("Escape")
    page.lane().get_by_role("button", name="Clear").click()
    page.write('call say with "hello there"')
    page.ended(1)
    for how in ("id", "items"):
        code = copied(page, "curl", how)
        assert '"approve": false' in code
        assert "hello there" in said_by(code.replace('"approve": false', '"approve": true'), "curl", tmp_path)


def test_without_storing_all_items_are_carried(page: Playground, tmp_path: Path) -> None:
    page.group("More").locator(".switch", has_text="Store responses").click()
    page.write("first")
    page.ended(1)
    page.lane().locator(".composer textarea").fill("second")
    code = copied(page, "curl")
    assert "previous_response_id" not in code
    assert "user message 2" in said_by(code, "curl", tmp_path)


def test_a_chat_is_exported(server: Server, page: Playground) -> None:
    page.find(".card", has_text="Answer a function by hand").click()
    page.ended(1).locator(".answer-form textarea").fill('{"sky": "```clear"}')
    page.lane().locator(".answer-form textarea").press("Control+Enter")
    page.ended(2)
    page.write("repeat: # Not a title")
    page.ended(3)
    markdown = copied(page, "Markdown")
    assert markdown.startswith(
        "# Call get_weather for Lisbon.\n\n## You\n\nCall get_weather for Lisbon.\n\n## demo\n\n> "
    )
    assert '**Called** `get_weather`\n\n```json\n{\n  "city": "Lisbon"\n}\n```' in markdown
    assert '**Output**\n\n````\n{"sky": "```clear"}\n````' in markdown
    with page.page.expect_download() as download:
        page.find("#copy-save").click()
    assert download.value.suggested_filename == "call-get-weather-for-lisbon.md"
    copied(page, "JSON")
    with page.page.expect_download() as download:
        page.find("#copy-save").click()
    kept = json.loads(download.value.path().read_text())
    again = {"input": [*kept["items"], {"role": "user", "content": "And now?"}], "model": kept["model"]}
    answer = httpx.post(f"{server.base_url}/responses", json=again, timeout=SECONDS).json()
    assert "user message 3" in answer["output"][-1]["content"][0]["text"]


@needs_bubblewrap  # the page offers the code interpreter only where there is one
def test_a_stored_request_is_a_setup_again(server: Server, page: Playground) -> None:
    request = {
        "model": "demo",
        "instructions": "Rhyme.",
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "a", "strict": True, "schema": {"type": "object"}}},
        "tools": [
            {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False},
            {"type": "web_search", "search_context_size": "low"},
            {"type": "code_interpreter", "container": {"type": "auto"}},
            {"type": "mcp", "server_label": "tests", "allowed_tools": ["say"], "require_approval": "never"},
        ],
        "include": ["code_interpreter_call.outputs"],
        "temperature": 0.5,
        "max_output_tokens": 100,
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "metadata": {"order": "17"},
    }
    echoed = httpx.post(f"{server.base_url}/responses", json={**request, "generate": False}, timeout=SECONDS).json()
    assert run(page, "request", "(given) => it.requestOf(it.setupOf(given))", echoed) == request
    plain = httpx.post(
        f"{server.base_url}/responses", json={"model": "demo", "generate": False}, timeout=SECONDS
    ).json()
    assert run(page, "request", "(given) => it.requestOf(it.setupOf(given))", plain) == {"model": "demo"}


@pytest.fixture
def widths(server: Server, browser: Browser) -> Iterator[Playground]:
    with playground(browser) as page:
        yield page.open(server.url)
        assert page.problems == []


def test_the_setup_fits_and_axe_finds_nothing(widths: Playground) -> None:
    """Finds a control that is too wide, has no name, or cannot be told from its ground, in any dialog of the setup."""
    page = widths

    def look(*, in_both: bool = False) -> None:
        for size in ("telephone", "tablet", "desktop"):
            width, height = SIZES[size]
            page.page.set_viewport_size({"width": width, "height": height})
            assert not is_wider_than_its_window(page.page)
        axe_finds_nothing(page.page, "light", *(("dark",) if in_both else ()))

    for title in ("Functions", "Server tools", "MCP servers", "Tool use", "Sampling", "Length and end", "More"):
        page.group(title)
    page.turn_on("File search")
    page.turn_on("Code interpreter")
    page.find("[name=temperature]").fill("9")
    page.find("#mcp").get_by_role("button", name="Tools of tests").click()
    page.find("#mcp").get_by_label("Approval of calls of tests").select_option("Ask per tool")
    page.find("#mcp").get_by_label("Never ask before say").wait_for()
    look(in_both=True)
    choose_schema(page).locator("textarea").fill("{,")
    look(in_both=True)
    page.page.keyboard.press("Escape")
    page.find("#server-tools").get_by_role("button", name="Choose vector stores").click()
    expect(page.find("#picker-told")).not_to_have_text("Loading…")
    look()
    page.page.keyboard.press("Escape")
    page.find("#open-prompts").click()
    expect(page.find("#prompts-none")).to_be_visible()
    look()
    page.page.keyboard.press("Escape")
    page.page.goto(f"{page.page.url}{link_of({'instructions': 'Rhyme.', 'temperature': '1'})}")
    expect(page.find("#preset-apply")).to_be_visible()
    look()
    page.find("#preset-apply").click()
    copied(page, "Markdown")
    look()
