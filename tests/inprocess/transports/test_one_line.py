"""Every line that is written is one line to every reader, whatever ends a line to it stands in a text."""

import json
from typing import Any

import httpx
import pytest
from openai import OpenAI

from responses_app.stores.database.transfer import erasure
from responses_app.stores.database.transfer.erasure import Subject
from responses_app.stores.database.transfer.lines import Exported, ExportPlace, lines
from tests.inprocess.transports.test_every_api import CHAT, COMPLETIONS, MESSAGES, RESPONSES, asked, headers_of
from tests.kit.batches import batch_of, ended, line
from tests.kit.clients import http_client
from tests.kit.inprocess import Server

TEXT = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\r\nj — é"  # all that ends a line to `str.splitlines`


def read(text: str) -> list[Any]:
    """Return the JSON of lines, of events or of a file, as a reader cuts them that knows every end of a line."""
    found = [each.removeprefix("data: ") for each in text.splitlines()]
    return [json.loads(each) for each in found if each and not each.startswith(("event: ", ": ", "[DONE]"))]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (RESPONSES, {}),
        (RESPONSES, {"metadata": {"of": TEXT}}),
        (CHAT, {}),
        (CHAT, {"stop": ["never"]}),
        (MESSAGES, {}),
        (MESSAGES, {"stop_sequences": ["never"]}),
        (COMPLETIONS, {"stop": ["never"], "max_tokens": 2000}),
        (COMPLETIONS, {"echo": True, "max_tokens": 2000}),
    ],
)
async def test_events_are_lines(demo_server: Server, path: str, fields: dict[str, Any]) -> None:
    async with http_client(demo_server) as http:
        body = {**asked(path, f"repeat: {TEXT}", **fields), "stream": True, "model": "demo"}
        answer = await http.post(path, json=body, headers=headers_of(path))
    assert answer.status_code == 200, answer.text
    events = read(answer.text)
    assert "\u2028" in json.dumps(events, ensure_ascii=False)
    assert not set(answer.text) & {"\u2028", "\u2029", "\x85"}


@pytest.mark.each_database
async def test_files_of_lines_are_lines(demo_server: Server) -> None:
    with OpenAI(base_url=demo_server.base_url, api_key="none", max_retries=0) as client:
        batch = ended(client, batch_of(client, [line(TEXT, input=f"repeat: {TEXT}")]))
        (result,) = read(client.files.content(batch.output_file_id or "").text)
        assert result["custom_id"] == TEXT
        assert TEXT in result["response"]["body"]["output"][-1]["content"][0]["text"]
    async with http_client(demo_server) as http:
        assert (await http.post("/rollouts", json={"id": "lines", "metadata": {"of": TEXT}})).status_code == 200
        made = await http.post(RESPONSES, json={"input": f"repeat: {TEXT}"}, headers={"x-rollout-id": "lines"})
        rows: httpx.Response = await http.get("/rollouts/export", params={"rollout": "lines"})
    assert "\u2028" in json.dumps(read(rows.text), ensure_ascii=False)

    def exports() -> tuple[list[str], list[str]]:
        return list(lines(None, ExportPlace(), Exported())), list(erasure.lines(Subject(project="default")))

    for exported in demo_server.with_database(exports):
        told = [each for each in exported if made.json()["id"] in each]
        assert told
        assert [each for each in exported if len(each.splitlines()) != 1] == []
        assert "\u2028" in json.dumps(read("\n".join(told)), ensure_ascii=False)
