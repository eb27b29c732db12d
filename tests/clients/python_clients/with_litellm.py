"""LiteLLM as an SDK, over both APIs, and its smaller calls: python with_litellm.py BASE_URL.

Prints a line of JSON for each way: what came.
"""

import functools
import json
import sys
from collections.abc import Callable
from typing import Any

import litellm
from trip import TOO_LONG

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "find_hotel", "description": "Find one.", "parameters": PARAMETERS}}


def asked(text: str) -> list[dict[str, Any]]:
    """Return the messages of a chat that begins."""
    return [{"role": "user", "content": text}]


def say(way: str, **told: object) -> None:
    """Print what a test reads."""
    print(json.dumps({"way": way, **told}))


def chat(model: str, served: dict[str, str], messages: list[Any], **fields: Any) -> Any:
    """Ask for a completion, whole or as a stream, which LiteLLM puts together."""
    answer = litellm.completion(model=model, messages=messages, **fields, **served)
    return litellm.stream_chunk_builder(list(answer), messages=messages) if "stream" in fields else answer


def talk(api: str, way: str, ask: Callable[..., Any]) -> None:
    """Let it count, then call a function and hear what came of it."""
    fields = {"stream": True, "stream_options": {"include_usage": True}} if way == "streamed" else {}
    counted = ask(asked("count to 5"), **fields)
    said = counted.choices[0].message
    thought = getattr(said, "reasoning_content", None)
    say("text", api=api, how=way, text=said.content, thought=thought, used=counted.usage.total_tokens > 0)
    messages = asked("call find_hotel for Paris")
    message = ask(messages, tools=[TOOL], **fields).choices[0].message
    (call,) = message.tool_calls
    given = json.loads(call.function.arguments)
    output = {"role": "tool", "tool_call_id": call.id, "content": f"a hotel in {given['city']}"}
    answer = ask([*messages, message.model_dump(exclude_none=True), output], tools=[TOOL], **fields)
    say("loop", api=api, how=way, called=call.function.name, answer=answer.choices[0].message.content)


def exceed(api: str, way: str, ask: Callable[..., Any]) -> None:
    """Ask with more than the model reads, which LiteLLM tells from other errors: its router asks another model then."""
    try:
        ask(asked(TOO_LONG), **({"stream": True} if way == "streamed" else {}))
    except litellm.ContextWindowExceededError:
        say("too long", api=api, how=way)


def main(base_url: str) -> None:
    """Ask in each way."""
    litellm.suppress_debug_info = True  # it prints addresses of its pages
    served = {"api_base": base_url, "api_key": "none"}
    for api, model in {"chat": "openai/demo", "responses": "openai/responses/demo"}.items():
        for way in ("whole", "streamed"):
            ask = functools.partial(chat, model, served)
            talk(api, way, ask)
            exceed(api, way, ask)

    complete = functools.partial(litellm.text_completion, "count to 3", model="text-completion-openai/demo", **served)
    parts = [part.choices[0].text or "" for part in complete(stream=True) if part.choices]
    say("completions", whole=complete().choices[0].text, streamed="".join(parts))
    (found,) = litellm.embedding(model="openai/hashing-256", input=["Paris"], **served).data
    models = litellm.get_valid_models(True, "openai", **served)
    say("others", dimensions=len(found["embedding"]), models=models)


main(*sys.argv[1:])
