"""A project that keeps things for some hours, or no longer: what is past its time is unknown at once, and erased.

Only this finds a thing of a real server that is read or kept behind its time.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from tests.kit.closed import ClosedServer, bearer, post
from tests.kit.skills import zipped
from tests.kit.waiting import eventually

AGE = """
from datetime import timedelta
from django.db.models import F
from responses_app.kit.kept import kept_models
from responses_app.resources.rollouts.model import Rollout
ago = timedelta(hours=2)
for model in kept_models():
    if at := model.kept.dated:
        model.objects.update(**{at: F(at) - ago})
Rollout.objects.update(last_at=F("last_at") - timedelta(days=60))
"""
COUNTS = """
import json
from responses_app.stores.database.transfer.erasure import Subject, count
print(json.dumps({each: dict(count(Subject(project=each), stays=False)) for each in ("team", "other", "third")}))
"""


class Things:
    """One thing of each kind that a project keeps, by the path that shows it."""

    def __init__(self, server: ClosedServer, key: str) -> None:
        self._http = httpx.Client(base_url=server.base_url, headers=bearer(key), timeout=30)
        response = self._made("/responses", input="Hello")
        self.paths = [f"/responses/{response}", f"/responses/{response}/input_items", f"/playground/chats/{response}"]
        chat = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "store": True}
        self.paths.append(f"/chat/completions/{self._made('/chat/completions', **chat)}")
        conversation = self._made("/conversations", items=[{"type": "message", "role": "user", "content": "Hello"}])
        self.paths += [f"/conversations/{conversation}", f"/conversations/{conversation}/items"]
        self._made("/responses", input="And now?", conversation=conversation)
        lines = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"input": "Hi"}})
        file = self._uploaded("lines.jsonl", lines.encode(), purpose="batch")
        self.paths += [f"/files/{file}", f"/files/{file}/content"]
        store = self._made("/vector_stores", name="store", file_ids=[self._uploaded("a.txt", b"Hello")])
        self.paths += [f"/vector_stores/{store}", f"/vector_stores/{store}/files"]
        skill = self._http.post("/skills", files={"files": ("s.zip", zipped(), "application/zip")})
        assert skill.status_code == 200, skill.text
        self.paths += [f"/skills/{skill.json()['id']}", f"/skills/{skill.json()['id']}/versions"]
        self.paths.append(f"/rollouts/{self._made('/rollouts', id='r')}")
        self._made("/responses", input="Hello", metadata={"rollout_id": "r"})
        batch = {"input_file_id": file, "endpoint": "/v1/responses", "completion_window": "24h"}
        self.paths.append(f"/batches/{self._made('/batches', **batch)}")
        upload = {"filename": "a", "purpose": "user_data", "bytes": 3, "mime_type": "text/plain"}
        self.upload = self._made("/uploads", **upload)
        self._made("/playground/prompts", name="mine", setup={"instructions": "Hello"})
        self.once = self.asked_once()

    def close(self) -> None:
        self._http.close()

    def asked_once(self) -> str:
        """Return what is answered to a request that always has the same idempotency key."""
        asked = {"model": "m", "messages": [{"role": "user", "content": "Once"}]}
        answer = self._http.post("/chat/completions", json=asked, headers={"Idempotency-Key": "a key"})
        assert answer.status_code == 200
        return str(answer.json()["id"])

    def statuses(self) -> set[int]:
        return {self._http.get(path).status_code for path in self.paths}

    def lists(self) -> dict[str, int]:
        kinds = ("files", "vector_stores", "skills", "rollouts", "batches", "chat/completions", "playground/chats")
        return {kind: len(self._http.get(f"/{kind}").json()["data"]) for kind in (*kinds, "playground/prompts")}

    def cancelled(self) -> int:
        return self._http.post(f"/uploads/{self.upload}/cancel").status_code

    def _made(self, path: str, **body: object) -> str:
        answer = self._http.post(path, json=body)
        assert answer.status_code == 200, (path, answer.text)
        return str(answer.json()["id"])

    def _uploaded(self, name: str, content: bytes, *, purpose: str = "user_data") -> str:
        answer = self._http.post("/files", files={"file": (name, content)}, data={"purpose": purpose})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedServer]:
    with ClosedServer(tmp_path_factory.mktemp("hours"), auth="on", model_name="m", rollout_ttl=86400) as server:
        yield server


def test_what_is_older_is_unknown_and_erased(server: ClosedServer) -> None:
    keys = [server.new_key("--project", project) for project in ("team", "other")]
    server.operate("set_retention", "--project", "other", "forever")
    with closing(Things(server, keys[0])) as team, closing(Things(server, keys[1])) as other:
        assert team.statuses() == other.statuses() == {200}
        assert all(team.lists().values()), team.lists()
        assert team.asked_once() == team.once
        server.manage("shell", "--no-imports", "-c", AGE)
        assert team.statuses() - {200} <= {404}  # its roll-out may be gone by ROLLOUT_TTL
        server.operate("set_retention", "--project", "team", "1", "--yes")

        assert team.statuses() == {404}
        assert not any(team.lists().values()), team.lists()
        assert team.cancelled() == 404
        assert team.asked_once() != team.once, "it is carried out anew"
        assert other.statuses() == {200}
        assert all(other.lists().values())
        assert other.cancelled() == 200
        assert other.asked_once() == other.once
    left = json.loads(server.manage("shell", "--no-imports", "-c", COUNTS))
    # What was asked once more is young.
    young = {kind: number for kind, number in left["team"].items() if number}
    assert young == {"idempotency keys": 1}
    assert left["other"]["conversations"] == left["other"]["roll-outs"] == left["other"]["skills"] == 1
    with closing(Things(server, keys[0])) as again:
        assert again.statuses() == {200}, "what is young is known"


def test_what_was_stored_is_erased_where_nothing_is_kept_any_more(server: ClosedServer) -> None:
    key = server.new_key("--project", "third")
    with closing(Things(server, key)) as team:
        assert server.operate("set_retention", "--project", "third").startswith("third: server")
        said = server.operate("set_retention", "--project", "third", "never", "--yes")
        assert "What was past it is erased. Backups" in said
        assert team.statuses() == {404}
        assert not any(team.lists().values())
    left = json.loads(server.manage("shell", "--no-imports", "-c", COUNTS))["third"]
    assert not any(left.values()), left
    server.operate("set_retention", "--project", "third", "server")
    asyncio.run(eventually(lambda: post(server, key).json()["store"] is True))
    with closing(Things(server, key)) as again:
        assert again.statuses() == {200}
