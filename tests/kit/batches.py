"""Batches of OpenAI's API as tests make and follow them."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from openai import OpenAI
from openai.types import Batch

from tests.kit.waiting import looks

SECONDS = 60.0  # bound of every wait for a batch


def line(custom_id: str, url: str = "/v1/responses", /, **body: object) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "demo", **body}}


def content_of(lines: Iterable[object]) -> bytes:
    """Return an input: bytes are lines as they are."""
    return b"".join((each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in lines)


def uploaded(client: OpenAI, lines: Iterable[object]) -> str:
    """Upload an input and return the id of its file."""
    return client.files.create(file=("input.jsonl", content_of(lines)), purpose="batch").id


def batch_of(client: OpenAI, lines: Iterable[object], endpoint: str = "/v1/responses", **fields: Any) -> Batch:
    fields["endpoint"] = endpoint
    return client.batches.create(completion_window="24h", input_file_id=uploaded(client, lines), **fields)


def has_ended(batch: Batch) -> bool:
    return batch.status in ("failed", "completed", "expired", "cancelled")


def ended(client: OpenAI, batch: Batch, is_so: Callable[[Batch], bool] = has_ended) -> Any:
    """Return a batch once it has ended, or something else of it is so."""
    for _ in looks(SECONDS):
        now = client.batches.retrieve(batch.id)
        if is_so(now):
            return now
    raise AssertionError(now)


def output_of(client: OpenAI, file_id: str | None) -> dict[str, Any]:
    """Return the lines of an output by their custom ids, of which none is there twice."""
    if file_id is None:
        return {}
    lines = [json.loads(each) for each in client.files.content(file_id).text.splitlines()]
    by_id = {each["custom_id"]: each for each in lines}
    assert len(by_id) == len(lines)
    return by_id
