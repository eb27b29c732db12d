"""Everything a client can say to a server, with a marker in all of it."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import httpx

from tests.kit.clients import Socket
from tests.kit.closed import bearer
from tests.kit.marker import Marker
from tests.kit.scripts import BEGIN, SPOKEN
from tests.kit.server import Server
from tests.system.retention.faulty import FAULT

LARGE = 3 << 20  # bytes of a body: more than a server holds in memory
KILLED = "[hang]"  # what is answered a little, and then no more

PYTHON = "<|channel|>commentary to=python<|message|>{code}<|call|>"


def code_of(marker: Marker) -> str:
    """Return code that makes the marker of a text in which it is not, says it, and writes it to a file."""
    return (
        f"word = '{marker.word[::-1]}'[::-1]\nprint(word)\nopen(word + '.txt', 'w').write(word * 100)\n"
        "import sys; print(word, file=sys.stderr)"
    )


def script_of(made: Mapping[str, Marker]) -> list[dict[str, Any]]:
    """Return what the model says. `made` is what its code makes for each project."""
    return [
        *({"when": f"[python {name}]", "say": PYTHON.format(code=code_of(marker))} for name, marker in made.items()),
        {"when": "[call]", "say": "<|channel|>commentary to=functions.find<|message|>{}<|call|>"},
        {"when": KILLED, "say": f"{BEGIN}{'on and on ' * 50}<|return|>", "hang_after": SPOKEN + 8},
        {"when": "[fails]", "say": f"{BEGIN}So it goes.<|return|>", "fault": "crash", "fault_after": SPOKEN + 1},
        {"say": f"{BEGIN}Well.<|return|>"},
    ]


def tools_of(word: str) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {word: {"type": "string", "description": word}}}
    return [
        {"type": "function", "name": "find", "description": f"Finds {word}.", "parameters": parameters},
        {"type": "function", "name": f"f_{word}", "description": word, "parameters": parameters},
    ]


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


class Talk:
    """A project's client of one server. `answers` has the status of each request, by a name."""

    def __init__(self, server: Server, key: str, project: str, marker: Marker) -> None:
        self.server = server
        self.project = project
        self.word = marker.word
        self.headers = bearer(key)
        self.answers: dict[str, int] = {}
        self.bodies: dict[str, Any] = {}

    def everything(self) -> None:
        with httpx.Client(base_url=self.server.base_url, headers=self.headers, timeout=60) as self.http:
            self._responses()
            self._chats()
            self._kept()
            self._wrong()
        asyncio.run(self._sockets())

    def _post(self, name: str, path: str, /, headers: Mapping[str, str] = {}, **body: Any) -> Any:
        answer = self.http.post(path, json=body, headers=dict(headers))
        self.answers[name] = answer.status_code
        with contextlib.suppress(ValueError):
            self.bodies[name] = answer.json()
        return self.bodies.get(name)

    def _responses(self) -> None:
        word = self.word
        whole = {
            "instructions": f"Speak of {word}.",
            "input": [message(f"What is {word}?")],
            "tools": tools_of(word),
            "metadata": {word: word},
            "user": word,
            "safety_identifier": word,
            "prompt_cache_key": word,
            word: "a field that nobody knows",
        }
        self._post("response", "/responses", **whole)
        answer = self._post("call", "/responses", input=f"[call] {word}", tools=tools_of(word))
        call = next(each for each in answer["output"] if each["type"] == "function_call")
        given = {"type": "function_call_output", "call_id": call["call_id"], "output": f"It is {word}."}
        self._post("output", "/responses", input=[message(f"[call] {word}"), call, given], tools=tools_of(word))
        sealed = self._post("sealed", "/responses", input=word, include=["reasoning.encrypted_content"], store=False)
        self._post("continued", "/responses", input=[message(word), *sealed["output"], message(word)])
        self._post(
            "python",
            "/responses",
            input=f"[python {self.project}] {word}",
            tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
        )
        self._post(
            "shell", "/responses", input=word, tools=[{"type": "shell", "environment": {"type": "container_auto"}}]
        )
        file = {
            "type": "input_file",
            "filename": f"{word}.txt",
            "file_data": f"data:text/plain;base64,{base64.b64encode(word.encode() * 9).decode()}",
        }
        self._post("file in it", "/responses", input=[{"type": "message", "role": "user", "content": [file]}])
        self._post("long", "/responses", input=f"{word} " * 1000)
        self._post("large", "/responses", input={"text": f"{word} " * (LARGE // len(word))})
        self._post("compacted", "/responses/compact", input=[message(word)], model="m")
        self._post("counted", "/responses/input_tokens", input=word)
        with self.http.stream("POST", "/responses", json={**whole, "stream": True}) as stream:
            self.answers["streamed"] = stream.status_code
            stream.read()
        with self.http.stream("POST", "/responses", json={"input": f"[fails] {word}", "stream": True}) as stream:
            stream.read()
        self._post("failed", "/responses", input=f"[fails] {word}")
        mcp = {"type": "mcp", "server_label": word, "server_url": f"http://127.0.0.1:9/{word}", "authorization": word}
        self._post("mcp", "/responses", input=word, tools=[{**mcp, "require_approval": "never"}])

    def _chats(self) -> None:
        word = self.word
        said = [{"role": "system", "content": word}, {"role": "user", "content": word}]
        chat = self._post(
            "chat", "/chat/completions", model="m", messages=said, store=True, metadata={"a": word}, user=word
        )
        said += [chat["choices"][0]["message"], {"role": "user", "content": f"And {word}?"}]
        self._post("second chat", "/chat/completions", model="m", messages=said, store=True)
        with self.http.stream(
            "POST", "/chat/completions", json={"model": "m", "messages": said, "stream": True}
        ) as stream:
            stream.read()
        asked = {"model": "m", "max_tokens": 50, "system": word, "messages": [{"role": "user", "content": word}]}
        version = {"anthropic-version": "2023-06-01"}
        self._post("messages", "/messages", headers=version, metadata={"user_id": word}, **asked)
        self._post("completion", "/completions", model="m", prompt=word, user=word, max_tokens=4)
        self._post("embeddings", "/embeddings", model=word, input=word)
        self._post(
            "decisions", "/decisions", model="m", input=word, questions=[{"question": word, "labels": ["yes", word]}]
        )

    def _kept(self) -> None:
        """Ask for what has to be kept."""
        word, text = self.word, self.word.encode()
        self._post("background", "/responses", input=word, background=True)
        self._post("conversation", "/conversations", items=[message(word)], metadata={"a": word})
        self._post("in conversation", "/responses", input=word, conversation=f"conv_{word}")
        self._post("once", "/responses", input=word, headers={"Idempotency-Key": word})
        self._post(
            "chat once",
            "/chat/completions",
            model="m",
            messages=[{"role": "user", "content": word}],
            headers={"Idempotency-Key": f"c{word}"},
        )
        self._post("batch", "/batches", input_file_id=f"file-{word}", endpoint="/v1/responses", completion_window="24h")
        line = {
            "custom_id": word,
            "params": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": word}]},
        }
        self._post("message batch", "/messages/batches", headers={"anthropic-version": "2023-06-01"}, requests=[line])
        self._post("vector store", "/vector_stores", name=word, metadata={"a": word})
        self._post("container", "/containers", name=word)
        self._post("rollout", "/rollouts", id=f"r{word}", metadata={"a": word})
        self._post("in rollout", "/responses", input=word, metadata={"rollout_id": f"s{word}"})
        self._post("setup", "/playground/prompts", name=word, setup={"instructions": word})
        self._post(
            "upload", "/uploads", filename=f"{word}.txt", purpose="user_data", bytes=len(text), mime_type="text/plain"
        )
        self._post(
            "webhook",
            "/webhook_endpoints",
            name=word,
            url=f"https://example.com/{word}",
            event_types=["response.completed"],
        )
        for name, path, form in (
            ("file", "/files", {"purpose": "user_data"}),
            ("large file", "/files", {"purpose": "user_data"}),
            ("skill", "/skills", {}),
        ):
            content = text * (LARGE // len(text)) if "large" in name else text
            field = "files" if name == "skill" else "file"
            answer = self.http.post(path, data=form, files={field: (f"{word}.txt", content, "text/plain")})
            self.answers[name] = answer.status_code

    def _wrong(self) -> None:
        """Ask for what cannot be."""
        word = self.word
        self._post("wrong input", "/responses", input={word: word})
        self._post("wrong number", "/responses", input=word, temperature=word)
        self._post("wrong field", "/responses", input=word, text={"format": {"type": word}})
        self._post("wrong model", "/responses", input=word, model=word)
        self._post("wrong parent", "/responses", input=word, previous_response_id=f"resp_{word}")
        self._post("wrong tool", "/responses", input=word, tools=[{"type": word, "name": word}])
        self._post(
            "wrong schema",
            "/responses",
            input=word,
            text={"format": {"type": "json_schema", "name": word, "schema": {"type": word}}},
        )
        self._post("wrong rollout", "/chat/completions", model="m", messages=[{"role": word, "content": word}])
        self._post("broken", "/responses", input=f"Break with {word}.", instructions=f"{FAULT} {word}")
        self._post("unknown path", f"/{word}")
        for path in (
            f"/responses/{word}",
            f"/files/{word}",
            f"/conversations/{word}/items/{word}?after={word}",
            f"/{word}",
        ):
            self.answers[f"GET {path.replace(word, 'X')}"] = self.http.get(path).status_code
        broken = self.http.post("/responses", content=f'{{"input": "{word}", '.encode())
        self.answers["broken JSON"] = broken.status_code

    async def _sockets(self) -> None:
        word = self.word
        async with await Socket.open(self.server.ws_url, additional_headers=self.headers) as socket:
            first = await socket.ask(f"On a socket: {word}", instructions=word, metadata={"a": word})
            second = await socket.ask(word, previous_response_id=first["id"])
            self.answers["on a socket"] = 200 if second["status"] == "completed" else 500
            self.bodies["on a socket"] = second
            await socket.send({"type": word})
            await socket.receive()
            await socket.send(f'{{"type": "response.create", "input": "{word}"')
            await socket.receive()
            await socket.create(word, **{word: word, "temperature": word})
            await socket.receive()

    @contextlib.asynccontextmanager
    async def being_answered(self) -> AsyncIterator[None]:
        """Be in the middle of a stream and of a response on a socket."""
        async with (
            httpx.AsyncClient(base_url=self.server.base_url, headers=self.headers, timeout=60) as client,
            await Socket.open(self.server.ws_url, additional_headers=self.headers) as socket,
        ):
            await socket.create(f"{KILLED} {self.word}")
            while (await socket.receive())["type"] != "response.output_text.delta":
                pass
            asked = {"input": f"{KILLED} {self.word}", "stream": True}
            async with client.stream("POST", "/responses", json=asked) as stream:
                async for line in stream.aiter_lines():
                    if "output_text.delta" in line:
                        break
                yield


async def everything(talks: Sequence[Talk]) -> None:
    await asyncio.gather(*(asyncio.to_thread(talk.everything) for talk in talks))


async def cut_off(server: Server, talks: Sequence[Talk]) -> None:
    """Have the server killed (-9) while it answers all of them."""
    async with contextlib.AsyncExitStack() as stack:
        for talk in talks:
            await stack.enter_async_context(talk.being_answered())
        server.kill()


def as_text(body: object) -> str:
    return json.dumps(body)[:500]
