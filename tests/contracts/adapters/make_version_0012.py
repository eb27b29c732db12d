"""Makes `version_0012.json`, the database that `test_version_0012` goes on with: what an older version left.

Not a test and run by none: the file is made once, by the server that the old version is. In any folder:

    python make_version_0012.py /path/to/a/checkout/of/8ff8938 version_0012.json

It lets a server keep what a server keeps, kills it in the middle of its work, and writes down its rows and what it
answered. A second server of the old version then goes on, on a copy, and what came of that is written down too. It uses
nothing of the checkout but its server: the tests of today need not fit it.
"""

import base64
import hashlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

Frame = dict[str, Any]

ABOUT = [
    "A database of an older version of this server (commit 8ff8938, its newest migration is 0012_uploads), made by",
    "make_version_0012.py, which says how. rows: by table, the bytes in base64. reads: requests, and what each was",
    "answered; of a stream the digest. continued: bodies of creates, each with the prompt that the old version made of",
    "it. unfinished: what ran or waited when its server was killed, the events that its reader had seen, and what the",
    "old version made of it: its end, the types of its events and the prompts. limits: what set_limits printed.",
]
SECRET_KEY = "the key of a server that no longer runs"
BEGIN = "<|channel|>final<|message|>"
HELLO = f"{BEGIN}Hello there, friend.<|return|>"
LONG = f"{BEGIN}{' '.join(str(number) for number in range(40))}<|return|>"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Paris"}<|call|>'
THOUGHT = "<|channel|>analysis<|message|>Hm, Paris — 巴黎 🙂.<|end|><|start|>assistant"
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
PYTHON = {"type": "code_interpreter", "container": {"type": "auto"}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCRIPT: list[Frame] = [
    {"when": "[weather]", "say": f"{THOUGHT}{CALL}"},
    {"when": "[think]", "say": f"{THOUGHT}{HELLO}"},
    {"when": "[compute]", "say": f"{THOUGHT}<|channel|>analysis to=python code<|message|>print(6 * 7)<|call|>"},
    {"when": "[json]", "say": f'{BEGIN}{{"city":"Paris"}}<|return|>'},
    {"when": "[weird]", "say": "<|channel|>weird<|message|>text here<|return|>"},
    {"when": "[break]", "say": LONG, "fault": "failed", "fault_after": 12},
    {"when": "[hang]", "say": f"{THOUGHT}{LONG}", "hang_after": 40},
    {"when": "[ponder]", "say": f"{THOUGHT}{LONG}", "hang_after": 6},
    {"say": HELLO},
]
KINDS = (
    "response chainpart sampleditem publicname chatchoice logpart conversation conversationitem storedfile filepart "
    "upload uploadpart vectorstore vectorstorefile vectorstorechunk chunkwords worker project apikey"
).split()
TRUTHS = {"background", "settles", "ends_final", "is_whole", "removed", "cancelled"}  # SQLite has no booleans
OWN_NUMBERS = {"conversationitem", "logpart", "filepart"}  # nothing refers to them


class OldServer:
    """A server of the old version on its own folder; a second one does not hang and keeps its engine's journal."""

    def __init__(self, checkout: Path, folder: Path, *, hangs: bool = True, **settings: str) -> None:
        self.checkout = checkout
        self.folder = folder
        folder.mkdir(exist_ok=True)
        script = [{name: each[name] for name in each if hangs or name != "hang_after"} for each in SCRIPT]
        self.environ = {
            **{name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")},
            "DJANGO_SETTINGS_MODULE": "respsite.settings",
            "PYTHONPATH": str(checkout),
            "DATA_DIR": str(folder),
            "SECRET_KEY": SECRET_KEY,
            "AUTH": "on",
            "ENGINE": "scripted",
            "ENGINE_SCRIPT": str(folder / "script.json"),
            "ENGINE_OPTIONS": json.dumps({"journal": str(folder / "journal.jsonl")}),
            "MODEL_NAME": "test-model",
            "BACKGROUND_MAX_RUNNING": "2",
            "WORKER_LEASE_SECONDS": "1",
            "SHUTDOWN_GRACE_SECONDS": "0",
            **settings,
        }
        Path(self.environ["ENGINE_SCRIPT"]).write_text(json.dumps(script))

    def manage(self, *words: str) -> str:
        """Run a command of the old version on this server's database."""
        command = [sys.executable, "manage.py", *words]
        return subprocess.run(
            command, cwd=self.checkout, env=self.environ, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve in here; gives the URL. At the end it is killed."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        command = [sys.executable, *("-m", "daphne", "-b", "127.0.0.1", "-p", port, "respsite.asgi:application")]
        with (self.folder / "server.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.checkout, env=self.environ, stdout=log, stderr=log)
        try:
            wait_for(partial(is_ready, f"http://127.0.0.1:{port}/ready"))
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def journal(self, response_id: str) -> list[list[int]]:
        """Return the prompts that the engine got of a response."""
        file = self.folder / "journal.jsonl"
        lines = map(json.loads, file.read_text().splitlines() if file.exists() else [])
        return [line["prompt_tokens"] for line in lines if line["request_id"].startswith(response_id)]


def is_ready(url: str) -> bool:
    """Whether a server answers."""
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    """Return once it is so."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.05)


class Kept:
    """What is asked of the server, and what it answers; `http` has the key of a project."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http
        self.responses: list[str] = []
        self.others: list[str] = []  # paths
        self.bodies: list[Frame] = []  # that go on

    def post(self, path: str, **body: Any) -> Frame:
        """Post, and return the answer."""
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def create(self, text: object, /, *, continued: bool = True, **fields: Any) -> Frame:
        """Create a response that ends."""
        response = self.post("/responses", input=text, **fields)
        self.responses.append(response["id"])
        if continued:
            self.bodies.append({"input": "Go on.", "previous_response_id": response["id"]})
        return response

    def chains(self) -> None:
        """A chain through a tool loop, forked, and what else a machine goes through."""
        asked = self.create("[weather] in Paris?", continued=False, tools=[WEATHER], instructions="Be brief.")
        output = {"type": "function_call_output", "call_id": asked["output"][-1]["call_id"], "output": "18 °C \x00 🙂"}
        told = self.create([output], previous_response_id=asked["id"], tools=[WEATHER])
        thanks = self.create("[think] Thanks.", previous_response_id=told["id"], metadata={"mine": "yes"})
        self.create("And Rome?", previous_response_id=told["id"], include=["message.output_text.logprobs"])
        self.create("[compute] it", tools=[PYTHON], include=["code_interpreter_call.outputs"])
        form = {"type": "json_schema", "name": "place", "schema": CITY}
        self.create("[json]", text={"format": form})
        self.create("[weird]")
        self.create("[think] little", max_output_tokens=18)
        compacted = self.post("/responses/compact", model="test-model", previous_response_id=thanks["id"])
        question, go_on = ({"role": "user", "content": text} for text in ("[think] Thanks.", "Go on."))
        references = [{"type": "item_reference", "id": item["id"]} for item in thanks["output"]]
        for items in (compacted["output"], [question, *thanks["output"]], [question, *references]):
            self.bodies.append({"input": [*items, go_on]})
        first = self.create("Forget me.", continued=False)
        self.create("Not me.", previous_response_id=first["id"])
        self.http.delete(f"/responses/{first['id']}")
        self.responses.remove(first["id"])

    def turns(self) -> None:
        """A turn of two legs, which share an id."""
        legs = {"respsite-dialect": "codex-turn"}
        body: Frame = {"input": "[weather]", "tools": [WEATHER]}
        for _ in range(2):
            answer = self.http.post("/responses", json=body, headers=legs).json()
            output = {"type": "function_call_output", "call_id": answer["output"][-1].get("call_id"), "output": "18 °C"}
            body = {"input": [output], "tools": [WEATHER], "previous_response_id": answer["id"]}
        self.responses.append(answer["id"])
        self.bodies.append({"input": "Go on.", "previous_response_id": answer["id"]})

    def endings(self) -> None:
        """A response that failed, one in the background, and one that was cancelled."""
        for fields in ({"input": "[break] it"}, {"input": "[think]", "background": True}):
            events = list(self.begin(**fields))
            self.responses.append(events[-1]["response"]["id"])
        stream = self.begin(input="[hang]", background=True)
        response_id = until(stream, "response.output_text.delta")[0]["response"]["id"]
        self.post(f"/responses/{response_id}/cancel")
        self.responses.append(response_id)

    def begin(self, **fields: Any) -> Iterator[Frame]:
        """Create a response; give its events. The stream is closed once nothing refers to them."""
        request = self.http.build_request("POST", "/responses", json={"stream": True, **fields})
        return events_of(self.http.send(request, stream=True))

    def items(self) -> None:
        """Two conversations, one of which lost an item, and a stored chat completion."""
        for text in ("Three.", "Four."):
            item = {"type": "message", "role": "user", "content": f"Before {text}"}
            path = f"/conversations/{self.post('/conversations', items=[item], metadata={'topic': text})['id']}"
            name = path.rpartition("/")[2]
            self.create(f"[think] {text}", conversation=name, continued=False)
            self.create("And then?", conversation=name, continued=False)
            self.bodies.append({"input": "Go on.", "conversation": name})
            self.others += [path, f"{path}/items?order=asc"]
        items = self.http.get(f"{path}/items").json()["data"]
        self.http.delete(f"{path}/items/{items[1]['id']}")
        messages = [{"role": "user", "content": "[think] chat"}]
        chat = self.post("/chat/completions", messages=messages, n=2, store=True, metadata={"mine": "yes"})["id"]
        self.others += ["/chat/completions", f"/chat/completions/{chat}", f"/chat/completions/{chat}/messages"]

    def files(self) -> None:
        """Files, one that came in parts, and a vector store of them."""
        names = []
        for name, text in (("shell.txt", "The shell of a turtle is made of bone."), ("fish.txt", "A fish has scales.")):
            answer = self.http.post("/files", files={"file": (name, text)}, data={"purpose": "user_data"})
            names.append(answer.json()["id"])
        upload = self.post("/uploads", filename="up.txt", bytes=6, mime_type="text/plain", purpose="user_data")["id"]
        parts = [
            self.http.post(f"/uploads/{upload}/parts", files={"data": data}).json()["id"] for data in ("ab", "cdef")
        ]
        names.append(self.post(f"/uploads/{upload}/complete", part_ids=parts)["file"]["id"])
        store = self.post("/vector_stores", name="animals", metadata={"a": "b"}, file_ids=names[:2])["id"]
        path = f"/vector_stores/{store}"
        wait_for(lambda: self.http.get(path).json()["file_counts"]["completed"] == 2)
        self.others += ["/files", path, f"{path}/files", f"{path}/files/{names[0]}/content", f"{path}/search"]
        self.others += [f"/files/{each}{tail}" for each in names for tail in ("", "/content")]

    def reads(self) -> list[Frame]:
        """Return requests and what each is answered. A search, which tells the store that it is used, is the last."""
        tails = ("", "/input_items?order=asc", "?stream=true")
        paths = [f"/responses/{each}{tail}" for each in self.responses for tail in tails]
        return [self._read(path) for path in sorted([*paths, *self.others], key=lambda path: "search" in path)]

    def _read(self, path: str) -> Frame:
        if "search" in path:
            body = {"query": "turtle shells"}
            return {"path": path, "body": body, "text": self.http.post(path, json=body).text}
        text = self.http.get(path).text
        return {"path": path, "digest": digest(text)} if "stream" in path else {"path": path, "text": text}

    def unfinished(self) -> Frame:
        """Leave what runs and waits when the server is killed; return the ids, and the events that readers have seen.

        The streams stay open: a response in the foreground ends with its only reader.
        """
        self.streams = {
            "foreground": self.begin(input="[hang] in front"),
            "talking": self.begin(input="[hang] behind", background=True),
            "thinking": self.begin(input="[ponder]", background=True),
        }
        kinds = {"thinking": "response.reasoning_text.delta"}
        found: Frame = {}
        for name, stream in self.streams.items():
            seen = until(stream, kinds.get(name, "response.output_text.delta"))
            found[name] = {"id": seen[0]["response"]["id"], "seen": seen}
        parent = self.responses[1]
        fields = {"background": True, "previous_response_id": parent, "tools": [WEATHER]}
        found["waits"] = {"id": self.post("/responses", input="Hello?", **fields)["id"], "seen": []}
        time.sleep(2)  # what was said is written down by now
        return found


def events_of(stream: httpx.Response) -> Iterator[Frame]:
    """Read the events of a stream."""
    for line in stream.iter_lines():
        if line.startswith("data: {") and (event := json.loads(line[6:]))["type"] != "response.ping":
            yield event


def until(stream: Iterator[Frame], kind: str) -> list[Frame]:
    """Return the events up to one of this type."""
    events = []
    for event in stream:
        events.append(event)
        if event["type"] == kind:
            return events
    raise AssertionError(events)


def digest(text: str) -> str:
    """Return what a stream is known by."""
    return hashlib.sha256(text.encode()).hexdigest()


def rows_of(folder: Path) -> Frame:
    """Return all rows of a server that has ended, by table."""
    found = {}
    with closing(sqlite3.connect(folder / "respsite.sqlite3")) as database:
        for kind in KINDS:
            columns = "rowid AS id, *" if kind == "chunkwords" else "*"
            cursor = database.execute(f"SELECT {columns} FROM responses_app_{kind}")
            names = [column[0] for column in cursor.description]
            rows = [{name: _value(name, value) for name, value in zip(names, row, strict=True)} for row in cursor]
            for row in rows if kind in OWN_NUMBERS else ():
                del row["id"]
            assert rows, kind
            found[f"responses_app_{kind}"] = rows
    return found


def _value(name: str, value: object) -> object:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return bool(value) if name in TRUTHS else value


def keep(server: OldServer) -> Frame:
    """Let a server keep everything, and kill it; return what it answered."""
    server.manage("migrate", "--verbosity", "0")
    key = server.manage("create_key", "--project", "p", "--name", "first").strip()
    limited = server.manage("create_key", "--project", "q", "--requests-per-minute", "1").strip()
    limits = server.manage("set_limits", "--project", "p", "--concurrent-responses", "50", "--websockets", "3")
    # The client is the last to leave: a response in the foreground would end by that.
    with httpx.Client(headers=bearer(key), timeout=30) as http, server.serving() as http.base_url:  # type: ignore[assignment]
        kept = Kept(http)
        for step in (kept.chains, kept.turns, kept.endings, kept.items, kept.files):
            step()
        reads = kept.reads()
        unfinished = kept.unfinished()
    return {
        "key": key,
        "limited": limited,
        "limits": limits,
        "reads": reads,
        "bodies": kept.bodies,
        "unfinished": unfinished,
    }


def go_on(server: OldServer, key: str, bodies: list[Frame], unfinished: Frame) -> list[Frame]:
    """Go on with everything; return the bodies with their prompts, and note in `unfinished` what came of it."""
    with server.serving() as url, httpx.Client(base_url=url, headers=bearer(key), timeout=30) as http:
        for each in unfinished.values():
            path = f"/responses/{each['id']}"
            wait_for(lambda path=path: http.get(path).json()["status"] not in ("queued", "in_progress"))  # type: ignore[misc]
            each["status"] = http.get(path).json()["status"]
            each["types"] = [event["type"] for event in events_of(http.get(f"{path}?stream=true"))]
            each["prompts"] = server.journal(each["id"])
        made = []
        for body in bodies:
            answer = http.post("/responses", json=body)
            assert answer.status_code == 200, answer.text
            made.append({"body": body, "prompt": server.journal(answer.json()["id"])[0]})
        return made


def bearer(key: str) -> dict[str, str]:
    """Return the header of a key."""
    return {"authorization": f"Bearer {key}"}


def make(checkout: Path, folder: Path) -> Frame:
    """Make the whole file."""
    first = OldServer(checkout, folder / "first")
    kept = keep(first)
    rows = rows_of(first.folder)
    second = OldServer(checkout, folder / "second", hangs=False)
    shutil.copy(first.folder / "respsite.sqlite3", second.folder)
    continued = go_on(second, kept["key"], kept.pop("bodies"), kept["unfinished"])
    return {"about": ABOUT, "secret_key": SECRET_KEY, **kept, "continued": continued, "rows": rows}


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
        Path(sys.argv[2]).write_text(as_text(make(Path(sys.argv[1]).resolve(), Path(made_in))) + "\n")
