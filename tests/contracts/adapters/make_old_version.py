"""Makes `old_version.json`, the database that `test_old_version` migrates: what an older version of the server left.

Not a test and run by none: the file is made once, by the server that the old version is. In a checkout of commit
78abc20, whose newest migration is 0002_state:

    PYTHONPATH=. python /path/to/make_old_version.py old_version.json

What it imports of the tests lies there in `tests/` and `tests/wire/transports/`, not yet in `tests/kit/`.

It lets a server keep what a server keeps, kills it in the middle of its work, and writes down its rows. A second server
of the old version then continues every chain, on a copy, and the prompts that its engine got are written down too.
"""

import asyncio
import base64
import json
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.kit.clients import Frame, Socket, http_client
from tests.kit.raw_streams import RawStream
from tests.kit.scripts import BEGIN, CALL, HELLO, LONG, SPOKEN, WEATHER
from tests.kit.server import Server
from tests.kit.waiting import eventually

ABOUT = [
    "A database of an older version of this server (commit 78abc20, its newest migration is 0002_state), made by",
    "make_old_version.py, which says how. rows: by table, the bytes in base64. reads: what GET answered, beside the",
    "bodies of responses, which are in their rows. continued: bodies of creates, each with the prompt that the old",
    "version made of it. unfinished: what ran or waited when its server was killed, and the prompt when it ran again.",
]
SECRET_KEY = "the key of a server that no longer runs"
SCRIPT: list[dict[str, Any]] = [
    {"when": "[weather]", "say": f"<|channel|>analysis<|message|>Hm, Paris — 巴黎 🙂.<|end|><|start|>assistant{CALL}"},
    {"when": "[think]", "say": f"<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant{HELLO}"},
    {"when": "[break]", "say": LONG, "fault": "failed", "fault_after": SPOKEN + 5},
    {"when": "[hang]", "say": LONG, "hang_after": SPOKEN + 5},
    {"when": "[silence]", "say": HELLO, "hang_after": 0},
    {"when": "what is important", "say": f"{BEGIN}They spoke of Paris.<|return|>"},
    {"say": HELLO},
]
TABLES = "response chainpart sampleditem conversation conversationitem worker".split()
TRUTHS = {"background", "settles", "ends_final"}  # SQLite has no booleans


def old_server(folder: Path, *, hangs: bool = True) -> Server:
    """A server of the old version, not started."""
    return Server(
        folder,
        script=[entry for entry in SCRIPT if hangs or "hang_after" not in entry],
        model_name="test-model",
        secret_key=SECRET_KEY,
        engine_options=json.dumps({"journal": str(folder / "journal.jsonl")}),
        background_max_running=2,
        worker_lease_seconds=2,
    )


class Kept:
    """What is asked of the server, and the ids that came of it."""

    def __init__(self, server: Server, http: httpx.AsyncClient) -> None:
        self.server = server
        self.http = http
        self.ends: list[str] = []  # of chains
        self.finished: list[str] = []
        self.conversations: list[str] = []

    async def post(self, path: str, **body: Any) -> Frame:
        """Post, and return the answer."""
        answer = await self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def create(self, text: object, **fields: Any) -> Frame:
        """Create a response that ends."""
        response = await self.post("/responses", input=text, **fields)
        self.finished.append(response["id"])
        return response

    async def chains(self) -> None:
        """A chain through a tool loop, forked; one over a WebSocket, on what was not stored; one without an answer."""
        asked = await self.create("[weather] in Paris?", tools=[WEATHER], instructions="Be brief.")
        call_id = asked["output"][-1]["call_id"]
        output = {"type": "function_call_output", "call_id": call_id, "output": "18 °C \x00 🙂"}
        told = await self.create([output], previous_response_id=asked["id"], tools=[WEATHER])
        thanks = await self.create("[think] Thanks.", previous_response_id=told["id"], metadata={"mine": "yes"})
        fork = await self.create("And Rome?", previous_response_id=told["id"], include=["message.output_text.logprobs"])
        self.ends += [asked["id"], told["id"], thanks["id"], fork["id"]]
        async with await Socket.open(self.server.ws_url) as socket:
            remembered = await socket.ask("[think] One.", store=False)
            stored = await socket.ask("Two.", previous_response_id=remembered["id"])
            warm = await socket.ask("Warm.", generate=False)
        self.finished += [stored["id"], warm["id"]]
        self.ends += [stored["id"], warm["id"]]

    async def endings(self) -> None:
        """Failed with an output, incomplete, cancelled; in the background, completed and cancelled."""
        for fields in ({"input": "[break] it"}, {"input": "[think]", "max_output_tokens": 12}):
            events = await (await RawStream.create(self.server, **fields)).rest()
            self.finished.append(events[-1]["response"]["id"])
        stream = await RawStream.create(self.server, input="[think] in the background", background=True)
        self.finished.append((await stream.rest())[-1]["response"]["id"])
        self.ends.append(self.finished[-1])
        hanging = await RawStream.create(self.server, input="[hang] and be cancelled", background=True)
        response_id = (await hanging.until("response.output_text.delta"))[0]["response"]["id"]
        await self.post(f"/responses/{response_id}/cancel")
        hanging.kill()
        self.finished.append(response_id)

    async def items(self) -> None:
        """A conversation with two responses, another that lost an item, and a chain behind a compaction."""
        for text in ("Three.", "Four."):
            item = {"type": "message", "role": "user", "content": f"Before {text}"}
            conversation = await self.post("/conversations", items=[item], metadata={"topic": text})
            self.conversations.append(conversation["id"])
            await self.create(f"[think] {text}", conversation=conversation["id"])
            await self.create("And then?", conversation=conversation["id"])
        items = (await self.http.get(f"/conversations/{self.conversations[1]}/items")).json()["data"]
        await self.http.delete(f"/conversations/{self.conversations[1]}/items/{items[1]['id']}")
        compacted = await self.post("/responses/compact", model="test-model", previous_response_id=self.ends[2])
        behind = await self.create([*compacted["output"], {"role": "user", "content": "Go on."}])
        inline = [{"type": "compaction", "compact_threshold": 1000}]
        long = await self.create("word " * 1000)
        shorter = await self.create("Five.", previous_response_id=long["id"], context_management=inline)
        self.ends += [behind["id"], shorter["id"]]
        self.compaction = compacted["output"]

    async def deleted(self) -> None:
        """A response whose descendant stays."""
        first = await self.create("Forget me.")
        self.ends.append((await self.create("Not me.", previous_response_id=first["id"]))["id"])
        await self.http.delete(f"/responses/{first['id']}")
        self.finished.remove(first["id"])

    async def unfinished(self) -> dict[str, str]:
        """What runs and waits when the server is killed, by what it is."""
        foreground = await RawStream.create(self.server, input="[hang] in front")
        talking = await RawStream.create(self.server, input="[hang] behind", background=True)
        found = {}
        for name, stream in (("foreground", foreground), ("talking", talking)):
            found[name] = (await stream.until("response.output_text.delta"))[0]["response"]["id"]
        silent = await self.post("/responses", input="[silence]", background=True)
        waits = await self.post(
            "/responses", input="Hello?", background=True, previous_response_id=self.ends[1], tools=[WEATHER]
        )
        return {**found, "silent": silent["id"], "waits": waits["id"]}

    async def reads(self) -> dict[str, str]:
        """What everything that has ended reads like."""
        paths = [f"/responses/{each}{tail}" for each in self.finished for tail in ("", "/input_items?order=asc")]
        paths += [f"/conversations/{each}{tail}" for each in self.conversations for tail in ("", "/items?order=asc")]
        return {path: (await self.http.get(path)).text for path in paths}

    def continuations(self) -> list[Frame]:
        """Bodies that go on from everything: chains, conversations, items by their ids, the compaction."""
        bodies: list[Frame] = [{"input": "Go on.", "previous_response_id": each} for each in self.ends]
        bodies += [{"input": "Go on.", "conversation": each} for each in self.conversations]
        return bodies


def rows_of(folder: Path) -> dict[str, Any]:
    """Return all rows of a server that has ended, by table."""
    found = {}
    with closing(sqlite3.connect(folder / "respsite.sqlite3")) as database:
        for table in TABLES:
            cursor = database.execute(f"SELECT * FROM responses_app_{table}")
            columns = [column[0] for column in cursor.description]
            rows = [{name: _value(name, value) for name, value in zip(columns, row, strict=True)} for row in cursor]
            for row in rows if table == "conversationitem" else ():
                del row["id"]  # the database's own number
            found[f"responses_app_{table}"] = rows
    return found


def _value(name: str, value: object) -> object:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return bool(value) if name in TRUTHS else value


async def replayed(http: httpx.AsyncClient, kept: Kept) -> list[Frame]:
    """Return bodies that begin chains with items of the store: as they are, and by their ids alone."""
    output = (await http.get(f"/responses/{kept.ends[2]}")).json()["output"]
    question, go_on = ({"role": "user", "content": text} for text in ("[think] Thanks.", "Go on."))
    references = [{"type": "item_reference", "id": item["id"]} for item in output]
    return [{"input": [*items, go_on]} for items in ([question, *output], [question, *references], kept.compaction)]


async def made_by_the_first(server: Server) -> dict[str, Any]:
    """Let a server keep everything, and kill it."""
    async with http_client(server) as http:
        kept = Kept(server, http)
        for step in (kept.chains, kept.endings, kept.items, kept.deleted):
            await step()
        reads = await kept.reads()
        bodies = [*kept.continuations(), *(await replayed(http, kept))]
        unfinished = await kept.unfinished()
    server.kill()
    rows = rows_of(server.folder)
    for row in rows["responses_app_response"]:
        assert reads.pop(f"/responses/{row['id']}", row["body"]) == row["body"]
    return {"reads": reads, "rows": rows, "bodies": bodies, "unfinished": unfinished}


async def is_completed(http: httpx.AsyncClient, response_id: str) -> bool:
    """Whether a response is."""
    return bool((await http.get(f"/responses/{response_id}")).json()["status"] == "completed")


async def prompts_of_the_second(server: Server, bodies: list[Frame], again: list[str]) -> list[list[int]]:
    """Return the prompts of creates, and of what a dead server left to be run again."""
    async with http_client(server) as http:
        ids = [(await http.post("/responses", json=body)).json()["id"] for body in bodies]
        for response_id in again:
            await eventually(partial(is_completed, http, response_id))
    journal = [json.loads(line) for line in (server.folder / "journal.jsonl").read_text().splitlines()]
    prompts = {entry["request_id"][: len(ids[0])]: entry["prompt_tokens"] for entry in journal}
    return [prompts[response_id] for response_id in (*ids, *again)]


async def make(folder: Path) -> dict[str, Any]:
    """Make the whole file."""
    with old_server(folder / "first") as first:
        made = await made_by_the_first(first)
    bodies, unfinished = made.pop("bodies"), made.pop("unfinished")
    (folder / "second").mkdir()
    shutil.copy(folder / "first" / "respsite.sqlite3", folder / "second")
    again = [unfinished["silent"], unfinished["waits"]]
    with old_server(folder / "second", hangs=False) as second:
        prompts = await prompts_of_the_second(second, bodies, again)
    run_again = dict(zip(again, prompts[len(bodies) :], strict=True))
    return {
        "about": ABOUT,
        "secret_key": SECRET_KEY,
        "unfinished": {name: {"id": each, "prompt": run_again.get(each)} for name, each in unfinished.items()},
        "continued": [{"body": body, "prompt": prompt} for body, prompt in zip(bodies, prompts, strict=False)],
        **made,
    }


def as_text(value: object, depth: int = 0) -> str:
    """Write JSON with a line for each row."""
    if depth == 3 or not isinstance(value, dict | list) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = " " * (depth + 1)
    if isinstance(value, dict):
        lines = [f"{inner}{json.dumps(key)}: {as_text(each, depth + 1)}" for key, each in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"
    return "[\n" + ",\n".join(inner + as_text(each, 3) for each in value) + "\n" + " " * depth + "]"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made_in:
        Path(sys.argv[1]).write_text(as_text(asyncio.run(make(Path(made_in)))) + "\n")
