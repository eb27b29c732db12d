"""A server with models of three formats, over its sockets: a chain goes on with each of them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from engine.formats.harmony.encoding import decode_tokens
from tests.inprocess.conftest import Connect
from tests.kit.clients import Socket, http_client, text_of
from tests.kit.fake_vllm import MODEL
from tests.kit.inprocess import Server
from tests.kit.scripts import BEGIN, CALL, WEATHER
from tests.unit.engine.rendering_vllm import RenderingVllm
from tests.unit.formats.rendering import FAMILIES, format_of

Ask = Callable[..., Awaitable[dict[str, Any]]]


class Models:
    """`gpt-oss`, which calls `get_weather` and says hello, and a vLLM for each family, which says who it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.vllms = {}
        for family in FAMILIES:
            said = [*f" I am {family.name}.\n".encode(), family.ids[family.end]]
            self.vllms[family.name] = RenderingVllm({"tokens": said}, family=family)

    def entries(self) -> str:
        """Return what the setting MODELS says of them."""
        script = self.folder / "script.json"
        script.write_text(json.dumps([{"when": "Weather?", "say": CALL}, {"say": f"{BEGIN}I am gpt-oss.<|return|>"}]))
        journal = {"journal": str(self.folder / "journal")}
        entries: dict[str, object] = {"gpt-oss": {"engine": "scripted", "script": str(script), "options": journal}}
        for name, vllm in self.vllms.items():
            vllm.family.write(self.folder / name)
            entries[name] = {
                **{"engine": "vllm-server", "url": vllm.url, "model": MODEL},
                **{"format": "chat-template", "tokenizer": str(self.folder / name)},
            }
        return json.dumps(entries)

    def prompt(self, name: str) -> str:
        """Return the latest prompt of a model."""
        if name == "gpt-oss":
            journal = (self.folder / "journal").read_text().splitlines()
            return decode_tokens(json.loads(journal[-1])["prompt_tokens"])
        made, _ = format_of(self.vllms[name].family)
        return b"".join(map(made.token_bytes, self.tokens(name))).decode()

    def tokens(self, name: str) -> list[int]:
        """Return the tokens of the latest prompt of a family's model."""
        tokens: list[int] = self.vllms[name].generations[-1].body["token_ids"]
        return tokens


async def go_round(models: Models, ask: Ask) -> None:
    """Have each model go on where another one stopped, and the first family once more."""
    first = await ask("Weather?", model="gpt-oss", tools=[WEATHER])
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "18 degrees"}
    second = await ask([output], model="qwen", tools=[WEATHER], previous_response_id=first["id"])
    assert text_of(second) == " I am qwen.\n"
    places = [models.prompt("qwen").index(part) for part in ("Weather?", '"city": "Paris"', "18 degrees")]
    assert places == sorted(places)
    sampled = [*models.tokens("qwen"), *b" I am qwen.\n"]
    third = await ask("Sure?", model="llama", previous_response_id=second["id"])
    assert text_of(third) == " I am llama.\n"
    fourth = await ask("Really?", model="gpt-oss", previous_response_id=third["id"])
    assert text_of(fourth) == "I am gpt-oss."
    places = [models.prompt("gpt-oss").index(part) for part in ("18 degrees", " I am qwen.\n", " I am llama.\n")]
    assert places == sorted(places)
    await ask("Well?", model="qwen", previous_response_id=fourth["id"], tools=[WEATHER])
    assert models.tokens("qwen")[: len(sampled)] == sampled, "the prompt before, and all that was sampled"
    assert "I am gpt-oss." in models.prompt("qwen")


async def test_a_chain_goes_on_with_models_of_other_formats(folder: Path, tmp_path: Path, open_socket: Connect) -> None:
    """Over HTTP from the store, over the WebSocket from the connection's memory."""
    models = Models(tmp_path)
    server = Server(folder, models=models.entries())
    async with AsyncExitStack() as stack:
        for vllm in models.vllms.values():
            await stack.enter_async_context(vllm)
        await asyncio.to_thread(server.start)
        stack.push_async_callback(asyncio.to_thread, server.stop)
        http = await stack.enter_async_context(http_client(server))

        async def post(given: object, **fields: object) -> dict[str, Any]:
            answer = await http.post("/responses", json={"input": given, **fields})
            assert answer.status_code == 200, answer.text
            said: dict[str, Any] = answer.json()
            return said

        await go_round(models, post)
        chat = {"model": "llama", "messages": [{"role": "user", "content": "Hi"}], "stop": ["llama"]}
        answer = (await http.post("/chat/completions", json=chat)).json()["choices"][0]
        assert (answer["message"]["content"], answer["finish_reason"]) == (" I am ", "stop")
        socket: Socket = await open_socket(server)

        async def ask(given: object, **fields: object) -> dict[str, Any]:
            said: dict[str, Any] = await socket.ask(given, store=False, **fields)
            return said

        await go_round(models, ask)
