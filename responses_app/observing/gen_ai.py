"""OpenTelemetry's conventions for generative AI, as far as this server has what they name.

    https://github.com/open-telemetry/semantic-conventions-genai (status: development)

    POST /v1/responses                     SERVER    of the conventions for HTTP
    └── chat gpt-oss-20b                   INTERNAL  inference: a response, a chat, a message, a request for decisions
        ├── turn                           CLIENT    a generation of the engine; ours: an inference has several
        ├── execute_tool code_interpreter  INTERNAL
        └── invoke_agent /root/berlin      INTERNAL  turns and tools of an agent are below it

The tokens of all turns stand on the inference alone, so whoever adds up a trace counts them once.
"""

import json
from collections.abc import Mapping
from typing import Any

from responses_app.observing.traces import Value

PROVIDER = "respsite"  # none of the conventions' own: each of those says whose further attributes there are
CHAT = "chat"
TEXT_COMPLETION = "text_completion"
EMBEDDINGS = "embeddings"
EXECUTE_TOOL = "execute_tool"
INVOKE_AGENT = "invoke_agent"
DETAILS = "gen_ai.client.inference.operation.details"  # the event that has the contents of an inference
_DATASTORES = ("file_search",)  # types of tools that search what is kept here
# Attributes of a request, by the names of its fields. `stop` is no number, but a text of its client.
_SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "max_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
}
LARGEST = 2**63  # an exporter writes whole numbers in 64 bits, and warns of a larger one with each span
_DOUBLES = ("temperature", "top_p", "presence_penalty", "frequency_penalty")


def operation(name: str, model: str) -> dict[str, Value]:
    """Return what every span of an operation with a model has when it begins."""
    return {"gen_ai.operation.name": name, "gen_ai.provider.name": PROVIDER, "gen_ai.request.model": model}


def sampling(fields: object) -> dict[str, Value]:
    """Return what a request says of how to sample; what it leaves out is left out."""
    said: dict[str, Value] = {}
    for field, name in _SAMPLING.items():
        value = getattr(fields, field, None)
        if value is not None and -LARGEST <= value < LARGEST:
            said[f"gen_ai.request.{name}"] = float(value) if name in _DOUBLES else value
    return said


def usage(*, input: int, cached: int, output: int, reasoning: int = 0) -> dict[str, Value]:
    """Return the tokens of an inference; `cached` are of the input, `reasoning` of the output."""
    used: dict[str, Value] = {"gen_ai.usage.input_tokens": input, "gen_ai.usage.output_tokens": output}
    if cached:
        used["gen_ai.usage.cache_read.input_tokens"] = cached
    if reasoning:
        used["gen_ai.usage.reasoning.output_tokens"] = reasoning
    return used


def tool(name: str, declared: str, call_id: str) -> dict[str, Value]:
    """Return what the span of a call has; `declared` is the tool's type in its request."""
    kind = "datastore" if declared in _DATASTORES else "extension"
    known = {"gen_ai.operation.name": EXECUTE_TOOL, "gen_ai.tool.name": name, "gen_ai.tool.type": kind}
    return {**known, "gen_ai.tool.call.id": call_id} if call_id else {**known}


def agent(identifier: str, name: str | None) -> dict[str, Value]:
    """Return what the span of an agent has; a model has chosen its name, so it may be left out."""
    known = {"gen_ai.operation.name": INVOKE_AGENT, "gen_ai.provider.name": PROVIDER, "gen_ai.agent.id": identifier}
    return {**known} if name is None else {**known, "gen_ai.agent.name": name}


def details(attributes: Mapping[str, Value], texts: Mapping[str, Value], error: str | None) -> dict[str, Any]:
    """Return what the event of an inference has: its span's attributes, and its contents.

    Events have contents as values, spans as JSON.
    """
    whole = {key: json.loads(value) if isinstance(value, str) else value for key, value in texts.items()}
    return {**attributes, **whole, **({} if error is None else {"error.type": error})}


def finish_reason(response: Mapping[str, Any]) -> str | None:
    """Return why a response has ended, in the conventions' words; None where it was cancelled or goes on."""
    match response["status"]:
        case "completed":
            # Its last item is a call that nobody here makes: the client's turn.
            last = response["output"][-1]["type"] if response["output"] else ""
            return "tool_call" if last in ("function_call", "custom_tool_call", "computer_call") else "stop"
        case "incomplete":
            reason = (response.get("incomplete_details") or {}).get("reason")
            return "content_filter" if reason == "content_filter" else "length"
        case "failed":
            return "error"
    return None
