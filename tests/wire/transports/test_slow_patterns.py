"""Patterns, grammars and choices that take long to read or to match: no worker stands still for them."""

from typing import Any

import httpx
import pytest

from tests.kit.fixtures import measured_server
from tests.kit.heartbeat import tries
from tests.kit.server import Server

SLOW = "(a*)*" * 1600
MANY = [f"c{number}" for number in range(90_000)]


def format_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}


def tool_of(syntax: str, definition: str) -> dict[str, Any]:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"tools": [{"type": "custom", "name": "x", "format": form}], "tool_choice": "required"}


REQUESTS: dict[str, dict[str, Any]] = {
    "a pattern that is matched": {"structured_outputs": {"regex": SLOW}},
    "a pattern in a schema": format_of(
        {"type": "object", "properties": {"a": {"type": "string", "pattern": SLOW}}, "required": ["a"]}
    ),
    "a pattern of a tool": tool_of("regex", SLOW),
    "a pattern in a grammar": tool_of("lark", f"start: /{SLOW}/"),
    "many alternatives": tool_of("lark", "start: " + " | ".join(f'"{number}"' for number in range(5000))),
    "many rules": tool_of(
        "lark", "start: a0\n" + "".join(f'a{n}: "x" a{n + 1}?\n' for n in range(3000)) + 'a3000: "y"'
    ),
    "an escape that is none": tool_of("lark", 'start: "' + "\\" * 40_001 + '"'),
    "many choices": {"structured_outputs": {"choice": MANY}},
}


server = measured_server("patterns", warm={"input": "Hello", "structured_outputs": {"regex": "a"}})


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
def test_nobody_waits_for_it(server: Server, asked: dict[str, Any]) -> None:
    for _ in tries(server):
        body = {"input": "Hello", "max_output_tokens": 50, "store": False, **asked}
        answer = httpx.post(f"{server.base_url}/responses", json=body, verify=False, timeout=120)
        assert answer.status_code in (200, 400), answer.text[:500]
