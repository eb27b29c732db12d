"""One conversation in the words of all three APIs: whatever the order, no prompt block is computed twice."""

from typing import Any

import httpx
import orjson
import pytest

from tests.kit.inprocess import Server
from tests.kit.scripts import WEATHER, as_history, generations

MODEL = "test-model"
BLOCK = 16  # tokens that an engine caches together
NAME, SCHEMA, ABOUT = WEATHER["name"], WEATHER["parameters"], "Tell the weather."
ORDERS = (
    "messages responses chat messages chat responses chain messages messages chat",
    "responses chain messages chat chat messages responses chain chain messages",
    "chat messages responses chat responses messages chain",  # the last one goes back to the response before it
)


class Conversation:
    """A loop of thoughts and calls, and how each API tells what came before."""

    def __init__(self, http: httpx.AsyncClient, server: Server, question: str) -> None:
        self._http = http
        self._server = server
        self._question = question
        self._turns: list[dict[str, Any]] = []  # what the model has thought and called, and what came of it
        self._histories: list[list[int]] = []  # what was read and said up to each turn
        self._responses: list[tuple[str, int]] = []  # those of the Responses API, with their turns
        self.computed_twice = 0  # full blocks of tokens that the engine had

    async def ask(self, api: str) -> None:
        """Go on in the words of this API."""
        continued = len(self._turns) if api != "chain" else self._responses[-1][1]
        path, body = getattr(self, f"_{api}")()
        answer = await self._http.post(path, json={"model": MODEL, **body})
        assert answer.status_code == 200, answer.text
        said = answer.json()
        response_id = "resp_" + said["id"].rpartition("_" if "_" in said["id"] else "-")[2]
        [entry] = generations(self._server, response_id)
        if continued:
            before, prompt = self._histories[continued - 1], entry["prompt_tokens"]
            same = next(
                (place for place, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), len(before)
            )
            self.computed_twice += len(before) // BLOCK - min(same, len(prompt)) // BLOCK
        del self._turns[continued:], self._histories[continued:]
        self._turns.append({**getattr(self, f"_read_{path.split('/')[1]}")(said), "output": f"[think] {continued}"})
        self._histories.append(as_history(entry))
        if path == "/responses":
            self._responses.append((response_id, len(self._turns)))

    def _responses_items(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = [{"role": "user", "content": self._question}]
        for turn in self._turns:
            told = {"encrypted_content": turn["seal"]} if turn["seal"] else {}
            content = [{"type": "reasoning_text", "text": turn["thought"]}]
            items += [
                {"type": "reasoning", "summary": [], "content": content, **told},
                {"type": "function_call", "call_id": turn["id"], "name": NAME, "arguments": turn["arguments"]},
                self._output(turn),
            ]
        return items

    def _output(self, turn: dict[str, Any]) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": turn["id"], "output": turn["output"]}

    def _responses_fields(self, input: Any) -> dict[str, Any]:
        tool = {"type": "function", "name": NAME, "parameters": SCHEMA, "description": ABOUT}
        return {"input": input, "tools": [tool], "include": ["reasoning.encrypted_content"]}

    def _responses_(self) -> tuple[str, dict[str, Any]]:
        return "/responses", self._responses_fields(self._responses_items())

    def _chain(self) -> tuple[str, dict[str, Any]]:
        previous, turn = self._responses[-1]
        fields = self._responses_fields([self._output(self._turns[turn - 1])])
        return "/responses", {**fields, "previous_response_id": previous}

    def _chat(self) -> tuple[str, dict[str, Any]]:
        messages: list[dict[str, Any]] = [{"role": "user", "content": self._question}]
        for turn in self._turns:
            function = {"name": NAME, "arguments": turn["arguments"]}
            call = {"id": turn["id"], "type": "function", "function": function}
            messages.append({"role": "assistant", "reasoning": turn["thought"], "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": turn["id"], "content": turn["output"]})
        tool = {"type": "function", "function": {"name": NAME, "parameters": SCHEMA, "description": ABOUT}}
        return "/chat/completions", {"messages": messages, "tools": [tool]}

    def _messages(self) -> tuple[str, dict[str, Any]]:
        messages: list[dict[str, Any]] = [{"role": "user", "content": self._question}]
        for turn in self._turns:
            thought = {"type": "thinking", "thinking": turn["thought"], "signature": turn["seal"] or ""}
            call = {"type": "tool_use", "id": turn["id"], "name": NAME, "input": orjson.loads(turn["arguments"])}
            result = {"type": "tool_result", "tool_use_id": turn["id"], "content": turn["output"]}
            messages.append({"role": "assistant", "content": [thought, call]})
            messages.append({"role": "user", "content": [result]})
        tool = {"name": NAME, "input_schema": SCHEMA, "description": ABOUT}
        fields = {"max_tokens": 2000, "thinking": {"type": "adaptive"}}
        return "/messages", {"messages": messages, "tools": [tool], **fields}

    def _read_responses(self, said: Any) -> dict[str, Any]:
        thought, call = said["output"][:2]
        text = thought["content"][0]["text"]
        return _turn(text, thought["encrypted_content"], call["call_id"], call["arguments"])

    def _read_chat(self, said: Any) -> dict[str, Any]:
        message = said["choices"][0]["message"]
        [call] = message["tool_calls"]
        return _turn(message["reasoning"], None, call["id"], call["function"]["arguments"])

    def _read_messages(self, said: Any) -> dict[str, Any]:
        thought, call = said["content"][:2]
        return _turn(thought["thinking"], thought["signature"], call["id"], orjson.dumps(call["input"]).decode())


def _turn(thought: str, seal: str | None, call_id: str, arguments: str) -> dict[str, Any]:
    return {"thought": thought, "seal": seal, "id": call_id, "arguments": arguments}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.each_database
async def test_a_conversation_that_changes_its_api_is_computed_once(
    server: Server, http: httpx.AsyncClient, order: str
) -> None:
    http.headers["anthropic-version"] = "2023-06-01"
    conversation = Conversation(http, server, f"[think] {order}")
    for api in order.split():
        await conversation.ask("responses_" if api == "responses" else api)
    assert conversation.computed_twice == 0
