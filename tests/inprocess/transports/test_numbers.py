"""Numbers of any size in what clients send: they leave as they came, from whichever API and database."""

import json
from typing import Any

import pytest
from openai import OpenAI

from responses_app.stores.database.transfer.lines import Exported, ExportPlace, lines
from tests.inprocess.transports.test_every_api import CHAT, MESSAGES, RESPONSES, asked, headers_of
from tests.kit.batches import batch_of, ended, uploaded
from tests.kit.clients import http_client
from tests.kit.inprocess import Server

NUMBERS = [str(2**256 - 1), str(-(2**63) - 1), "1e400", "9" * 5000, "0.12345678901234567890123"]
JSON = {"content-type": "application/json"}
HOLE = "HOLE"  # stands for a number
SCHEMA = {"type": "object", "properties": {"wei": {"type": "integer", "maximum": HOLE}}}
LISTED = {
    "type": "mcp_list_tools",
    "id": "mcpl_1",
    "server_label": "w",
    "tools": [{"name": "t", "input_schema": SCHEMA}],
}
FUNCTION = {"type": "function", "name": "f", "strict": False, "parameters": SCHEMA}
ITEMS: list[dict[str, Any]] = [
    LISTED,
    {"type": "additional_tools", "tools": [FUNCTION]},
    {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"goal": HOLE}},
    {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": [FUNCTION]},
    {"type": "function_call", "call_id": "d", "name": "f", "arguments": '{"wei": HOLE}'},
    {"type": "function_call_output", "call_id": "d", "output": "it is HOLE"},
    {"role": "user", "content": "and now?"},
]


def body_of(fields: dict[str, Any], number: str) -> str:
    """Return a body with a number in each hole."""
    return json.dumps({"model": "demo", **fields}).replace(f'"{HOLE}"', number).replace(HOLE, number)


@pytest.mark.each_database
@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:20])
async def test_a_response_keeps_them_in_tools_and_items(demo_server: Server, number: str) -> None:
    async with http_client(demo_server) as http:
        fields = {"input": ITEMS, "tools": [FUNCTION], "store": True}
        made = await http.post(RESPONSES, content=body_of(fields, number), headers=JSON)
        assert made.status_code == 200, made.text
        assert f'"maximum":{number}' in made.text
        at = f"{RESPONSES}/{made.text.partition('resp_')[2][:32].join(['resp_', ''])}"
        assert (await http.get(at)).text == made.text
        items = (await http.get(f"{at}/input_items", params={"order": "asc"})).text
        assert items.count(number) == len(ITEMS) - 1
        streamed = await http.post(RESPONSES, content=body_of({**fields, "stream": True}, number), headers=JSON)
        assert f'"maximum":{number}' in streamed.text
        replayed = await http.get(at, params={"stream": "true"})
        assert f'"maximum":{number}' in replayed.text
        response_id = at.rpartition("/")[2]
        goes_on = await http.post(RESPONSES, json={"input": "go on", "previous_response_id": response_id})
        assert goes_on.status_code == 200, goes_on.text
    exported = demo_server.with_database(lambda: list(lines(None, ExportPlace(), Exported())))
    assert any(response_id in each and number in each for each in exported)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:20])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (RESPONSES, {"tools": [{**FUNCTION, "strict": True}]}),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": False}}}),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "s", "schema": {"const": HOLE}}}}),
        (RESPONSES, {"metadata": {"of": HOLE}}),
        (RESPONSES, {"max_output_tokens": HOLE}),
        (RESPONSES, {"temperature": HOLE, "top_k": HOLE, "seed": HOLE}),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]}),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}),
        (CHAT, {"logit_bias": {"5": HOLE}, "seed": HOLE}),
        (MESSAGES, {"tools": [{"name": "f", "input_schema": SCHEMA}]}),
        (MESSAGES, {"max_tokens": HOLE}),
        ("/vector_stores", {"expires_after": {"anchor": "last_active_at", "days": HOLE}}),
        ("/conversations", {"items": ITEMS[:1], "metadata": {}}),
        ("/rollouts", {"metadata": {"of": HOLE}, "max_staleness": HOLE}),
        ("/embeddings", {"input": [HOLE], "dimensions": HOLE}),
    ],
)
async def test_none_of_them_breaks_the_server(
    demo_server: Server, path: str, fields: dict[str, Any], number: str
) -> None:
    """It is taken, or refused with its place."""
    known = path in (RESPONSES, CHAT, MESSAGES)
    body = body_of({**(asked(path, "call f", model="demo") if known else {}), **fields}, number)
    async with http_client(demo_server) as http:
        answer = await http.post(path, content=body, headers={**JSON, **headers_of(path)})
    assert answer.status_code in (200, 400, 404), answer.text
    assert "The body is not valid JSON" not in answer.text


async def test_a_line_of_a_batch_and_a_call_of_a_message_keep_them(demo_server: Server) -> None:
    number = NUMBERS[0]
    row = {"custom_id": "a", "method": "POST", "url": "/v1/responses"}
    text = json.dumps({**row, "body": {"model": "demo", "input": ITEMS, "tools": [FUNCTION]}})
    text = text.replace(f'"{HOLE}"', number).replace(HOLE, number)
    with OpenAI(base_url=demo_server.base_url, api_key="none", max_retries=0) as client:
        batch = ended(client, batch_of(client, [text.encode()]))
        assert number in client.files.content(batch.output_file_id or "").text
        assert number in client.files.content(uploaded(client, [text.encode()])).text
    async with http_client(demo_server) as http:
        only = {"type": "object", "properties": {"wei": {"enum": [HOLE]}}, "required": ["wei"]}
        fields = asked(MESSAGES, "call f", tools=[{"name": "f", "input_schema": only}])
        said = await http.post(
            MESSAGES, content=body_of({**fields, "model": "demo"}, number), headers={**JSON, **headers_of(MESSAGES)}
        )
        assert f'"input":{{"wei":{number}}}' in said.text, said.text
