"""A marker in all content that a server keeps: whoever sees it has seen content."""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

from tests.inprocess.roles.people import run
from tests.kit.batches import content_of, line
from tests.kit.closed import bearer
from tests.kit.inprocess import ClosedServer
from tests.kit.skills import manifest, zipped
from tests.kit.stored import stored
from tests.kit.waiting import eventually

MARKER = "xylophonemarker"  # letters alone, so that names may have it, too
MESSAGES = [{"role": "user", "content": f"repeat: prompt {MARKER}"}]
ITEMS = [
    {"type": "function_call", "call_id": "call_1", "name": f"get_{MARKER}", "arguments": f'{{"a": "{MARKER}"}}'},
    {"type": "function_call_output", "call_id": "call_1", "output": f"returned {MARKER}"},
    *MESSAGES,
]
ASKED = {
    "input": ITEMS,
    "instructions": f"Instruction {MARKER}",
    "metadata": {f"key_{MARKER}": f"value {MARKER}"},
    "tools": [{"type": "function", "name": f"get_{MARKER}", "description": MARKER, "parameters": {"type": "object"}}],
    "prompt_cache_key": MARKER,
    "safety_identifier": MARKER,
}
WEBHOOK = {"name": "w", "url": "https://93.184.216.34/", "event_types": ["response.completed"]}
_ROWS = f"""
from django.contrib.auth.models import Group
from responses_app.resources.conversations.model import Conversation
from responses_app.resources.projects.callers import create_admin_key
Conversation.objects.update(title="Title {MARKER}")
Group.objects.create(name="kitchen")
create_admin_key("planted", None)
"""


def plant(server: ClosedServer) -> dict[str, str]:
    """Make one of everything in the project `default`; return the ids, by the names they have in paths."""
    with httpx.Client(base_url=server.url, headers=bearer(server.key), timeout=60) as client:
        ids = _plant(client)
    run(server, _ROWS)
    deliveries = "SELECT min(id) FROM responses_app_webhookdelivery"
    asyncio.run(eventually(lambda: stored(server, deliveries) != [(None,)]))
    tables = {
        **{"user": "auth_user", "group": "auth_group", "apikey": "responses_app_apikey"},
        **{"adminkey": "responses_app_adminkey", "worker": "responses_app_worker"},
        **{"skillversion": "responses_app_skillversion", "webhookdelivery": "responses_app_webhookdelivery"},
    }
    rows = {name: stored(server, f"SELECT min(id) FROM {table}")[0][0] for name, table in tables.items()}
    others = {"project": "default", "auditrow": "1", "storedfile": ids["file"]}
    return {**ids, **{name: str(row) for name, row in rows.items()}, **others}


def ended(client: httpx.Client, response_id: str) -> None:
    """Read the stream of a background response to its end."""
    client.get(f"/v1/responses/{response_id}?stream=true").raise_for_status()


def _plant(client: httpx.Client) -> dict[str, str]:
    def post(path: str, body: Mapping[str, Any] | None = None, **how: Any) -> str:
        answer = client.post(f"/v1/{path}", json=body, **how)
        assert answer.status_code == 200, (path, answer.text)
        return str(answer.json()["id"])

    def upload(name: str, content: bytes, purpose: str) -> str:
        return post("files", files={"file": (name, content)}, data={"purpose": purpose})

    metadata = ASKED["metadata"]
    conversation = post("conversations", {"items": MESSAGES, "metadata": metadata})
    first = post("responses", ASKED)
    response = post("responses", {**ASKED, "previous_response_id": first})
    post("responses", {**ASKED, "conversation": conversation}, headers={"x-rollout-id": "task-1"})
    post("rollouts", {"id": "task-2", "metadata": metadata})
    file = upload(f"{MARKER}.txt", f"content {MARKER}".encode(), "user_data")
    lines = upload(f"{MARKER}.jsonl", content_of([line("a", **ASKED)]), "batch")
    store = post("vector_stores", {"name": MARKER, "metadata": metadata})
    webhook = post("webhook_endpoints", WEBHOOK)
    ended(client, post("responses", {**ASKED, "background": True}))  # whose event waits to be delivered
    asked = {"input_file_id": lines, "endpoint": "/v1/responses", "completion_window": "24h", "metadata": metadata}
    params = {"model": "demo", "max_tokens": 9, "messages": MESSAGES}
    claude = {"requests": [{"custom_id": "a", "params": params}]}
    skill = zipped({f"{MARKER}/SKILL.md": manifest(MARKER, f"About {MARKER}")})
    return {
        "response": response,
        "first": first,
        "conversation": conversation,
        "file": file,
        "vector_store": store,
        "file_batch": post(f"vector_stores/{store}/file_batches", {"file_ids": [file]}),
        "batch": post("batches", asked),
        "message_batch": post("messages/batches", claude, headers={"anthropic-version": "2023-06-01"}),
        "completion": post("chat/completions", {"messages": MESSAGES, "store": True, "metadata": metadata}),
        "prompt": post("playground/prompts", {"name": MARKER, "setup": {"instructions": MARKER}}),
        "skill": post("skills", files={"files": ("a.zip", skill)}),
        "webhookendpoint": webhook,
        "rollout": "task-1",
    }
