"""Batches of several keys: one that is deleted, one of a project with very many; and inputs larger than other files."""

from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, OpenAI

from responses_app.resources.batches.duty import MAX_CLAIMED
from tests.kit.batches import batch_of, ended, line, output_of, uploaded
from tests.kit.closed import ClosedServer
from tests.kit.sdk import sdk_of
from tests.kit.server import Server

LINES = 20
DELETE = """
from responses_app.resources.projects.model import ApiKey
print(ApiKey.objects.filter(name="batches").delete()[0])
"""
# A batch of the key that is gone, whose input nobody has read yet.
UNREAD = """
from responses_app.resources.batches.model import Batch
row = Batch.objects.get()
row.pk, row.status, row.times, row.worker = row.pk + "0", "validating", {}, ""
row.total = row.completed = row.failed = row.cancelled = 0
row.output_file_id = row.error_file_id = ""
row.save(force_insert=True)
print(row.pk)
"""


def test_a_batch_ends_with_its_key(tmp_path: Path) -> None:
    server = ClosedServer(tmp_path, engine_options={"tokens_per_second": 100}, auth="on", batch_lines_running=4)
    with server:
        key, other = server.new_key("--name", "batches"), server.new_key()
        with sdk_of(server, api_key=key) as client:
            batch = batch_of(client, [line(str(n), input=f"count to {2000 if n else 1}") for n in range(LINES)])
            ended(client, batch, lambda now: now.request_counts is not None and now.request_counts.completed == 1)
    assert server.manage("shell", "--no-imports", "-c", DELETE).split()[-1] == "1"
    with server, sdk_of(server, api_key=other) as client:
        batch = ended(client, batch)
        assert batch.status == "cancelled"
        answers, errors = output_of(client, batch.output_file_id), output_of(client, batch.error_file_id)
        assert sorted(answers) == ["0"]
        assert sorted(errors, key=int) == [str(number) for number in range(1, LINES)]
        assert {each["error"]["code"] for each in errors.values()} == {"batch_cancelled"}
        unread = server.manage("shell", "--no-imports", "-c", UNREAD).split()[-1]
        batch = ended(client, client.batches.retrieve(unread))
        assert batch.status == "failed"
        assert [each.code for each in batch.errors.data] == ["invalid_api_key"]
        assert "Traceback" not in server.output


@pytest.mark.each_database
def test_batches_of_one_project_keep_no_other_from_beginning(tmp_path: Path) -> None:
    server = ClosedServer(tmp_path, engine_options={"tokens_per_second": 20}, auth="on", batch_lines_running=4)
    with server:
        keys = [server.new_key("--project", name) for name in ("many", "one")]
        with sdk_of(server, api_key=keys[0]) as client:
            file = uploaded(client, [line(str(n), input="count to 20") for n in range(100)])
            fields: Any = {"completion_window": "24h", "endpoint": "/v1/responses", "input_file_id": file}
            made = [client.batches.create(**fields) for _ in range(MAX_CLAIMED + 1)]
            for each in made[:-1]:
                ended(client, each, lambda now: now.status == "in_progress")
            assert client.batches.retrieve(made[-1].id).status == "validating", "a worker has only so many"
        with sdk_of(server, api_key=keys[1]) as client:
            batch = ended(client, batch_of(client, [line("a", input="count to 1")]))
            assert batch.status == "completed"


def refusal(client: OpenAI, purpose: str, size: int, *, in_parts: bool) -> str:
    """Return why a file is refused, "" where it is not."""
    try:
        if in_parts:
            client.uploads.create(bytes=size, filename="a.jsonl", mime_type="text/plain", purpose=purpose)  # type: ignore[arg-type]
        else:
            client.files.create(file=("a.jsonl", b"x" * size), purpose=purpose)  # type: ignore[arg-type]
    except APIStatusError as error:
        if error.status_code != 413:
            raise
        return error.message
    return ""


@pytest.mark.parametrize("in_parts", [False, True])
def test_an_input_may_be_larger_than_other_files(tmp_path: Path, in_parts: bool) -> None:
    # More than what is refused before it is read.
    small, large = 2 << 20, 3 << 20
    server = Server(tmp_path, file_max_bytes=small, batch_max_bytes=large)
    with server, sdk_of(server) as client:
        assert not refusal(client, "user_data", small, in_parts=in_parts)
        assert "FILE_MAX_BYTES" in refusal(client, "user_data", small + 1, in_parts=in_parts)
        assert not refusal(client, "batch", large, in_parts=in_parts)
        assert "BATCH_MAX_BYTES" in refusal(client, "batch", large + 1, in_parts=in_parts)
