"""Who may watch a response: its own project's keys, and nobody else who is not of the staff."""

import httpx
import pytest

from tests.kit.closed import ClosedServer

pytestmark = [pytest.mark.any_server, pytest.mark.any_database]


def test_keys_of_other_projects_find_nothing(closed: ClosedServer) -> None:
    mine, other = (
        {"authorization": f"Bearer {closed.new_key('--project', name)}"} for name in ("watching", "watching-2")
    )
    made = httpx.post(f"{closed.base_url}/responses", json={"model": "m", "input": "Hi"}, headers=mine, timeout=60)
    response_id = made.json()["id"]
    path = f"{closed.url}/watch/responses/{response_id}"
    assert httpx.get(f"{path}.json", headers=mine, timeout=60).json()["status"] == "completed"
    page = httpx.get(path, headers=mine, timeout=60).text
    assert [part in page for part in ("Phases as a table", "Input items as JSON", "/admin/responses_app/")] == [
        True,
        True,
        False,
    ]
    both = f"{closed.url}/watch/compare?left={response_id}&right={response_id}"
    for url, status in ((f"{path}.json", 404), (path, 404), (both, 404)):
        answer = httpx.get(url, headers=other, timeout=60)
        assert (answer.status_code, "Hi" in answer.text) == (status, False)
    assert httpx.get(f"{path}.json", timeout=60).status_code == 401
    for url in (path, both):
        answer = httpx.get(url, timeout=60)
        assert (answer.status_code, answer.headers["location"].startswith("/admin/login/?next=")) == (302, True)
    narrow = {"authorization": f"Bearer {closed.new_key('--project', 'watching', '--scopes', 'api.model.read')}"}
    assert httpx.get(f"{path}.json", headers=narrow, timeout=60).status_code == 403
