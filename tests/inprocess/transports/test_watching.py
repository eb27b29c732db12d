"""Who may watch a response or a roll-out: its own project's keys, and nobody else who is not of the staff."""

import httpx

from tests.kit.inprocess import ClosedServer


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


def test_roll_outs_are_found_by_their_own_project(closed: ClosedServer) -> None:
    mine, other = (
        {"authorization": f"Bearer {closed.new_key('--project', name)}"} for name in ("rolling", "rolling-2")
    )
    asked = {"model": "m", "input": "Hi there"}
    for name in ("w1", "w2"):
        headers = {**mine, "x-rollout-id": name}
        httpx.post(f"{closed.base_url}/responses", json=asked, headers=headers, timeout=60).raise_for_status()
    httpx.post(f"{closed.base_url}/rollouts", json={"id": "o1", "group": "g"}, headers=other, timeout=60)
    httpx.post(f"{closed.base_url}/rollouts", json={"id": "m1", "group": "g"}, headers=mine, timeout=60)
    base = f"{closed.url}/watch/rollouts"
    page = httpx.get(f"{base}/w1?g=0", headers=mine, timeout=60)
    assert (page.status_code, "Hi" in page.text, "project=" in page.text) == (200, True, False)
    for url in (f"{base}/w1", f"{base}/w1?g=0&part=tokens", f"{base}/w1?with=w2", f"{base}/o1?with=w1"):
        answer = httpx.get(url, headers=other, timeout=60)
        assert (answer.status_code, "Hi" in answer.text) == (404, False)
        assert httpx.get(f"{url}&project=rolling", headers=other, timeout=60).status_code == 404
        anybody = httpx.get(url, timeout=60)
        assert (anybody.status_code, anybody.headers["location"].startswith("/admin/login/?next=")) == (302, True)
    for headers, shown, hidden in ((mine, "m1", "o1"), (other, "o1", "m1")):
        for query in ("", "?group=g", "?group=g&project=rolling", f"?name={hidden}"):
            text = httpx.get(f"{base}{query}", headers=headers, timeout=60).text
            assert f"/watch/rollouts/{hidden}" not in text
            assert (f"/watch/rollouts/{shown}" in text) == ("name" not in query)
    narrow = {"authorization": f"Bearer {closed.new_key('--project', 'rolling', '--scopes', 'api.model.read')}"}
    assert httpx.get(f"{base}/w1", headers=narrow, timeout=60).status_code == 403
