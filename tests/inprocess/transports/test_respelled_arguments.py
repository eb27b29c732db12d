"""Clients that read the JSON of a call and write it again: with a seal, the model reads it as it has spelled it."""

import json
from typing import Any

import httpx
import pytest

from tests.kit.fixtures import module_server
from tests.kit.inprocess import Server
from tests.kit.scripts import WEATHER, as_history, journal

ASIDE = "<|channel|>analysis<|message|>Hm, Paris.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris", "days": 3}<|call|>'
SCRIPT = [
    {"after_calls": 0, "say": f"{ASIDE}{CALL}"},
    {"after_calls": 1, "say": "<|channel|>final<|message|>Rain.<|return|>"},
]
AI_SDK = "opencode/1.18.33 ai-sdk/provider-utils/4.0.40 runtime/bun/1.3.14"

server = module_server("respelled", Server, script=SCRIPT, model_name="m", journal=True)


def ask(server: Server, user_agent: str, *items: Any) -> Any:
    """Ask as a client that keeps everything by itself."""
    asked = {"model": "m", "store": False, "include": ["reasoning.encrypted_content"], "tools": [WEATHER]}
    body = {**asked, "input": [{"role": "user", "content": "?"}, *items]}
    answer = httpx.post(f"{server.base_url}/responses", json=body, headers={"user-agent": user_agent}, verify=False)
    assert answer.status_code == 200, answer.text
    return answer.json()["output"]


@pytest.mark.parametrize(("user_agent", "exact"), [(AI_SDK, True), ("curl/8.0", False)])
def test_the_next_prompt_goes_on_with_what_was_sampled(server: Server, user_agent: str, exact: bool) -> None:
    begin = len(journal(server))
    said = ask(server, user_agent)
    call = next(item for item in said if item["type"] == "function_call")
    call["arguments"] = json.dumps(json.loads(call["arguments"]), separators=(",", ":"))
    without_ids = [{name: value for name, value in item.items() if name != "id"} for item in said]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    ask(server, user_agent, *without_ids, output)
    first, second = journal(server)[begin:]
    history = as_history(first)
    assert (second["prompt_tokens"][: len(history)] == history) is exact
