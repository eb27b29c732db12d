"""Spans of every API, as OpenTelemetry's conventions for generative AI want them; contents only where asked for."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.collector import Collector, told
from tests.kit.gen_ai_conventions import METRICS, event_problems, problems
from tests.kit.inprocess import Server

SECRET = "xylophone"
CODING_AGENT = {"x-claude-code-session-id": "session-1", "x-claude-code-agent-id": "agent-1"}
NOTE = "A turtle is an animal with a shell."


@pytest.fixture
def server(tmp_path: Path, collector: Collector) -> Server:
    """A server that sends its spans there, and is not started."""
    return Server(tmp_path, traces="on")


class Client:
    """Asks every API."""

    def __init__(self, server: Server) -> None:
        self.http = httpx.Client(base_url=server.base_url, timeout=30, headers={"anthropic-version": "2023-06-01"})

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def post(self, path: str, **body: object) -> Any:
        """Return an answer that is none of an error; of a stream nothing."""
        answer = self.http.post(path, json={"model": "demo", **body})
        assert answer.status_code == 200, answer.text
        return None if body.get("stream") else answer.json()

    def ask_everything(self) -> dict[str, Any]:
        """Ask; return the answers that are looked at."""
        sampled = {"temperature": 1, "top_p": 0.9, "seed": 7, "max_output_tokens": 50, "stream": True}
        asked = {"instructions": f"Mind the {SECRET}.", "text": {"format": {"type": "json_object"}}}
        self.post("/responses", input=SECRET, stop=["turtle"], **sampled, **asked)
        conversation = self.post("/conversations")["id"]
        plain = self.post("/responses", input=f"{SECRET} " * 4000, conversation=conversation)
        thinks = {"previous_response_id": plain["id"], "reasoning": {"effort": "high"}}
        self.post("/responses", input=f"Think about the {SECRET}", **thinks)
        compacts = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
        self.post("/responses", input=SECRET, previous_response_id=plain["id"], **compacts)
        compaction = self.post("/responses/compact", input=f"{SECRET} " * 40)["output"]
        self.post("/responses", input=[*compaction, {"role": "user", "content": SECRET}])
        messages = [{"role": "user", "content": SECRET}]
        self.http.headers.update(CODING_AGENT)
        self.post("/chat/completions", messages=messages, stream=True)
        for name in CODING_AGENT:
            del self.http.headers[name]
        self.post("/messages", messages=messages, max_tokens=50)
        self.post("/completions", prompt=SECRET, n=2, max_tokens=4)
        self.post("/embeddings", input=SECRET, model="hashing-256", dimensions=16)
        agents = {"multi_agent": {"enabled": True}}
        self.http.headers["openai-beta"] = "responses_multi_agent=v1"
        self.post("/responses", input=f"agent {SECRET}: count to 3", **agents)
        self.search()
        return {"conversation": conversation, "plain": plain}

    def search(self) -> None:
        """Have the model search a file."""
        given = self.http.post("/files", files={"file": ("a.txt", NOTE)}, data={"purpose": "assistants"}).json()
        store = self.post("/vector_stores", file_ids=[given["id"]])["id"]
        tool = {"type": "file_search", "vector_store_ids": [store]}
        self.post("/responses", input=f"Search the files for turtle {SECRET}", tools=[tool])


@contextmanager
def stopped(server: Server) -> Iterator[Client]:
    """Have a started server, which is stopped: then it has sent all its spans."""
    with server, Client(server) as client:
        yield client
        server.stop()


async def asked_everything(server: Server) -> dict[str, Any]:
    """Have a server asked everything, and stopped; return the answers that are looked at."""

    def run() -> dict[str, Any]:
        with stopped(server) as client:
            return client.ask_everything()

    return await asyncio.to_thread(run)


def checked(collector: Collector) -> dict[str, list[dict[str, Any]]]:
    """Return the attributes of all spans, by operation, once they fit the conventions."""
    found, wrong = dict[str, list[dict[str, Any]]](), list[str]()
    for span in collector.spans():
        attributes = told(span)
        wrong += [f"{span.name}: {each}" for each in problems(span.name, span.kind, span.status.code, attributes)]
        found.setdefault(attributes.get("gen_ai.operation.name", span.name), []).append(attributes)
    assert not wrong, wrong
    for operation in ("chat", "text_completion", "embeddings"):
        for attributes in found.get(operation, ()):
            assert attributes["respsite.project"] == "default"
            assert attributes["respsite.transport"]
            assert attributes["respsite.request_id"]
    assert not [each for each in found["turn"] if each.get("error.type", "GenerationFailed") != "GenerationFailed"]
    return found


async def test_every_span_fits_the_conventions_and_has_no_contents(server: Server, collector: Collector) -> None:
    answers = await asked_everything(server)
    found = checked(collector)
    assert not any(SECRET.encode() in body for body in collector.bodies), "contents stay here"
    assert {name: len(spans) for name, spans in found.items() if " " not in name and name != "turn"} == {
        "chat": 10,
        "text_completion": 1,
        "embeddings": 1,
        "execute_tool": 1,
        "invoke_agent": 1,
    }
    chats = found["chat"]
    (streamed,) = [each for each in chats if "gen_ai.request.seed" in each]
    assert streamed["gen_ai.request.temperature"] == 1.0
    assert streamed["gen_ai.request.max_tokens"] == 50
    assert streamed["gen_ai.request.stream"] is True
    assert streamed["gen_ai.output.type"] == "json"
    assert streamed["gen_ai.response.time_to_first_chunk"] > 0
    (coding,) = [each for each in chats if "gen_ai.agent.id" in each]
    assert (coding["gen_ai.conversation.id"], coding["gen_ai.agent.id"]) == ("session-1", "agent-1")
    (plain,) = [each for each in chats if each.get("gen_ai.conversation.id") == answers["conversation"]]
    used = answers["plain"]["usage"]
    assert plain["gen_ai.response.id"] == answers["plain"]["id"]
    assert plain["gen_ai.usage.input_tokens"] == used["input_tokens"]
    assert plain["gen_ai.usage.output_tokens"] == used["output_tokens"]
    thoughts = used["output_tokens_details"]["reasoning_tokens"]
    assert plain.get("gen_ai.usage.reasoning.output_tokens", 0) == thoughts
    (thoughtful,) = [each for each in chats if each.get("gen_ai.request.reasoning.level") == "high"]
    assert thoughtful["gen_ai.request.previous_response.id"] == answers["plain"]["id"]
    compacted = [each["gen_ai.conversation.compacted"] for each in chats if "gen_ai.conversation.compacted" in each]
    assert compacted == [True, True], "one has made a summary and read it, one was given it"
    (tool,) = found["execute_tool"]
    assert (tool["gen_ai.tool.name"], tool["gen_ai.tool.type"]) == ("file_search.msearch", "datastore")
    (agent,) = found["invoke_agent"]
    assert agent["gen_ai.agent.id"].startswith("resp_")


async def test_contents_are_in_the_spans_of_the_projects_that_are_named(server: Server, collector: Collector) -> None:
    server.environ["TRACES_CONTENT"] = "other,default"
    await asked_everything(server)
    found = checked(collector)
    (streamed,) = [each for each in found["chat"] if "gen_ai.request.seed" in each]
    said = json.loads(streamed["gen_ai.input.messages"])
    assert said == [{"role": "user", "parts": [{"type": "text", "content": SECRET}]}]
    assert json.loads(streamed["gen_ai.system_instructions"]) == [{"type": "text", "content": f"Mind the {SECRET}."}]
    (answer,) = json.loads(streamed["gen_ai.output.messages"])
    assert {part["type"] for part in answer["parts"]} <= {"text", "reasoning"}
    (long,) = [each for each in found["chat"] if each.get("gen_ai.conversation.id", "").startswith("conv_")]
    assert "more characters]" in long["gen_ai.input.messages"]
    assert len(long["gen_ai.input.messages"]) < 17_000
    assert streamed["gen_ai.request.stop_sequences"] == ["turtle"]
    (tool,) = found["execute_tool"]
    assert SECRET in tool["gen_ai.tool.call.arguments"]
    assert tool["gen_ai.tool.call.result"]
    (agent,) = found["invoke_agent"]
    assert agent["gen_ai.agent.name"] == f"/root/{SECRET}"


async def test_contents_are_in_events_where_they_are_to_be_there(server: Server, collector: Collector) -> None:
    server.environ |= {"TRACES_CONTENT": "default", "TRACES_CONTENT_IN": "events", "OTEL_TRACES_SAMPLER": "always_off"}
    script = [{"when": "[no]", "fault": "failed"}]
    failing = Server(server.folder / "failing", engine="scripted", script=script, traces="on", traces_content="*")
    failing.environ["TRACES_CONTENT_IN"] = "events"

    def fail() -> None:
        with stopped(failing) as client:
            assert client.http.post("/responses", json={"input": f"[no] {SECRET}"}).status_code >= 500

    answers = await asked_everything(server)
    await asyncio.to_thread(fail)
    assert {span.name for span in collector.spans()} & {"turn", "chat demo"} == {"turn"}
    assert not any(SECRET.encode() in body for body in collector.bodies), "spans have none then"
    events, wrong = list[dict[str, Any]](), list[str]()
    for record in collector.events():
        events.append(told(record))
        wrong += [f"{events[-1]}: {each}" for each in event_problems(record, events[-1])]
    assert not wrong, wrong
    assert len(events) == 11, "each response, chat and message"
    (streamed,) = [each for each in events if "gen_ai.request.seed" in each]
    asked = [{"role": "user", "parts": [{"type": "text", "content": SECRET}]}]
    assert streamed["gen_ai.input.messages"] == asked
    assert streamed["gen_ai.system_instructions"] == [{"type": "text", "content": f"Mind the {SECRET}."}]
    assert streamed["gen_ai.request.stop_sequences"] == ["turtle"]
    assert streamed["gen_ai.output.messages"][0]["role"] == "assistant"
    (plain,) = [each for each in events if each.get("gen_ai.response.id") == answers["plain"]["id"]]
    assert plain["gen_ai.usage.output_tokens"] == answers["plain"]["usage"]["output_tokens"]
    assert plain["gen_ai.conversation.id"] == answers["conversation"]
    (failed,) = [each for each in events if "error.type" in each]
    assert failed["error.type"] == "server_error"
    assert failed["gen_ai.output.messages"] == [{"role": "assistant", "parts": [], "finish_reason": "error"}]


async def test_metrics_have_the_conventions_names_labels_and_buckets(tmp_path: Path) -> None:
    def run() -> str:
        with Server(tmp_path) as server, Client(server) as client:
            client.ask_everything()
            return httpx.get(f"{server.url}/metrics").text

    page = await asyncio.to_thread(run)
    families = {family.name: family for family in text_string_to_metric_families(page)}
    for name, (required, others, bounds) in METRICS.items():
        family = families[f"{name.replace('.', '_')}_seconds"]
        assert family.type == "histogram"
        for sample in family.samples:
            labels = {key for key, value in sample.labels.items() if value and key != "le"}
            assert {each.replace(".", "_") for each in required} <= labels
            assert labels <= {each.replace(".", "_") for each in required | others}
        edges = [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")]
        assert sorted(set(edges)) == [*bounds, float("inf")]
    durations = families["gen_ai_server_request_duration_seconds"].samples
    counts = {s.labels["gen_ai_operation_name"]: s.value for s in durations if s.name.endswith("_count")}
    assert counts == {"chat": 10, "text_completion": 1, "embeddings": 1}


async def test_decisions_are_one_chat_and_have_no_contents(tmp_path: Path, collector: Collector) -> None:
    script = [{"when": "[no]", "fault": "failed"}, {"when": "[yes]", "say": "<|channel|>final<|message|>yes<|return|>"}]
    settings = {"traces": "on", "traces_content": "*", "model_name": "test-model"}

    def run() -> Any:
        with Server(tmp_path, engine="scripted", script=script, **settings) as server:
            asked = {"model": "test-model", "input": SECRET}
            good, bad = ({"type": "predicate", "instructions": f"[{says}] {SECRET}"} for says in ("yes", "no"))
            answer = httpx.post(f"{server.base_url}/decisions", json={**asked, "questions": [good, good]})
            assert answer.status_code == 200, answer.text
            assert httpx.post(f"{server.base_url}/decisions", json={**asked, "questions": [bad]}).status_code >= 500
            server.stop()
        return answer.json()["usage"]

    used = await asyncio.to_thread(run)
    found = checked(collector)
    assert len(found["turn"]) == 3
    assert not any(SECRET.encode() in body for body in collector.bodies), "contents are those of responses"
    good, bad = sorted(found["chat"], key=lambda each: "error.type" in each)
    assert good["gen_ai.request.model"] == "test-model"
    assert good["gen_ai.usage.input_tokens"] == used["input_tokens"]
    assert good["gen_ai.usage.output_tokens"] == used["output_tokens"] == 2
    assert bad["error.type"] == "GenerationFailed"


async def test_a_failure_has_its_error(tmp_path: Path, collector: Collector) -> None:
    script = [{"when": "[no]", "fault": "failed"}]

    def run() -> None:
        with Server(tmp_path, engine="scripted", script=script, traces="on") as server:
            questions = [{"type": "predicate", "instructions": "It fails."}]
            assert server.post("/responses", input="[no]").status_code >= 500
            assert server.post("/completions", prompt="[no]").status_code >= 500
            assert server.post("/decisions", input="[no]", questions=questions).status_code >= 500
            server.stop()

    await asyncio.to_thread(run)
    found = checked(collector)
    response, decided = found["chat"]
    assert response["error.type"] == "server_error"
    assert response["gen_ai.response.finish_reasons"] == ["error"]
    assert decided["error.type"] == "GenerationFailed"
    assert found["text_completion"][0]["error.type"]


def test_the_check_finds_what_does_not_fit() -> None:
    fits = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search", "respsite.project": "p"}
    assert problems("execute_tool search", 1, 0, fits) == []
    assert problems("turn", 3, 0, {"respsite.turn": 1}) == []
    for name, kind, status, changes in (
        ("execute_tool search", 1, 0, {"gen_ai.tool.nmae": "search"}),
        ("execute_tool search", 1, 0, {"gen_ai.tool.type": 1}),
        ("execute_tool search", 1, 0, {"gen_ai.request.model": "m"}),
        ("execute_tool search", 3, 0, {}),
        ("execute_tool search", 1, 2, {}),
        ("tool call", 1, 0, {}),
        ("execute_tools search", 1, 0, {"gen_ai.operation.name": "execute_tools"}),
    ):
        assert problems(name, kind, status, {**fits, **changes})
    chat = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "p", "gen_ai.request.model": "m"}
    assert problems("chat m", 1, 0, chat) == []
    assert problems("chat m", 1, 0, {**chat, "gen_ai.output.messages": '[{"role": "assistant"}]'})
    assert problems("chat m", 1, 0, {**chat, "gen_ai.output.messages": '[{"role": "a", "parts": [{"type": "text"}]}]'})
    assert problems("chat", 1, 0, {key: value for key, value in chat.items() if "model" not in key})
