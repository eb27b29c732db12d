"""What roll-outs record of a real vLLM is what it was asked and gave, token by token and to the bit, over each API.

Only this finds a record that differs from the tokens and numbers of a real vLLM.
"""

from pathlib import Path
from typing import Any

import httpx

from tests.kit.clients import http_client
from tests.kit.rollouts import assert_tree_is_relayed, tree_of
from tests.kit.sdk import MODEL, WEATHER
from tests.system.vllm.fronts import relayed
from tests.system.vllm.server import VllmServer

FUNCTION = {"type": "function", "function": {name: value for name, value in WEATHER.items() if name != "type"}}
QUESTION = {"role": "user", "content": "the weather of Paris and Rome"}
OUTPUT = "18 °C in Paris"


async def responses(http: httpx.AsyncClient) -> None:
    """Call a function, and go on with its output."""
    first = await asked(http, "/responses", {"model": MODEL, "input": [QUESTION], "tools": [WEATHER]})
    (call,) = [item for item in first["output"] if item["type"] == "function_call"]
    output = [{"type": "function_call_output", "call_id": call["call_id"], "output": OUTPUT}]
    again = {"model": MODEL, "input": output, "tools": [WEATHER], "previous_response_id": first["id"]}
    await asked(http, "/responses", again)


async def chat(http: httpx.AsyncClient) -> None:
    """Call a function, and say all of it again with its output."""
    body: Any = {"model": MODEL, "messages": [QUESTION], "tools": [FUNCTION], "max_completion_tokens": 300}
    message = (await asked(http, "/chat/completions", body))["choices"][0]["message"]
    output = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": OUTPUT}
    await asked(http, "/chat/completions", {**body, "messages": [QUESTION, message, output]})


async def messages(http: httpx.AsyncClient) -> None:
    """Answer in two turns."""
    http.headers["anthropic-version"] = "2023-06-01"
    body: Any = {"model": MODEL, "messages": [{"role": "user", "content": "say short"}], "max_tokens": 64}
    first = await asked(http, "/messages", body)
    history = [*body["messages"], {"role": "assistant", "content": first["content"]}, *body["messages"]]
    await asked(http, "/messages", {**body, "messages": history})


async def completions(http: httpx.AsyncClient) -> None:
    """Go on with a raw prompt, twice."""
    await asked(http, "/completions", {"model": MODEL, "prompt": [1, 2, 3, 4], "max_tokens": 8, "n": 2, "seed": 1})


async def asked(http: httpx.AsyncClient, path: str, body: Any) -> Any:
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_what_is_recorded_is_what_vllm_had(vllm_server: VllmServer, tmp_path: Path) -> None:
    async with relayed(vllm_server, tmp_path) as (server, relay):
        for api in (responses, chat, messages, completions):
            relay.generations.clear()
            async with http_client(server) as http:
                http.headers["x-rollout-id"] = api.__name__
                await api(http)
                tree = await tree_of(http, api.__name__)
                assert len(tree["generations"]) == 2
                assert_tree_is_relayed(tree, relay.generations)
