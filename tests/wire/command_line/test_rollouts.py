"""`respsite rollouts list|show|reward|end|delete` against a real server."""

import json
from typing import Any
from uuid import uuid4

import pytest

from tests.kit.sdk import sdk_of
from tests.kit.server import Server
from tests.wire.command_line.program import respsite


def said(server: Server, *words: str) -> list[Any]:
    """Return the lines that an action prints."""
    ran = respsite("rollouts", *words, "--url", server.url)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_the_life_of_a_roll_out(daphne_server: Server) -> None:
    group = f"g-{uuid4().hex}"
    names = [f"{group}.{number}" for number in range(3)]
    with sdk_of(daphne_server) as client:
        for name in names:
            client.post("/rollouts", body={"id": name, "group": group}, cast_to=object)
        answer = client.responses.create(model="demo", input="Hello", extra_headers={"x-rollout-id": names[0]})
    assert [each["id"] for each in said(daphne_server, "list", "--group", group)] == names[::-1]
    assert [each["id"] for each in said(daphne_server, "list", "--group", group, "--limit", "2")] == names[:0:-1]
    [head] = said(daphne_server, "show", names[0])
    [tree] = said(daphne_server, "show", names[0], "--tree")
    assert "nodes" not in head
    assert [each["response_id"] for each in tree["generations"]] == [answer.id]
    said(daphne_server, "reward", names[0], "-0.5")
    [rewarded] = said(daphne_server, "reward", names[0], '{"tests": 1}', "--turn", answer.id)
    assert [(each["reward"], each["turn"]) for each in rewarded["rewards"]] == [(-0.5, None), ({"tests": 1}, answer.id)]
    assert said(daphne_server, "end", names[0])[0]["status"] == "ended"
    assert said(daphne_server, "delete", names[0])[0]["deleted"] is True
    assert [each["id"] for each in said(daphne_server, "list", "--group", group)] == names[:0:-1]


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("show", "nobody"), 1, "No rollout found"),
        (("show", "../models"), 1, "40"),
        (("reward", "nobody", "high"), 2, "a number, or a JSON object"),
        (("reward", "nobody", "true"), 2, "a number, or a JSON object"),
        (("list", "--limit", "0"), 2, "at least 1"),
        (("forget", "nobody"), 2, "invalid choice"),
    ],
)
def test_what_is_wrong_is_told(daphne_server: Server, words: tuple[str, ...], status: int, told: str) -> None:
    ran = respsite("rollouts", *words, *(("--url", daphne_server.url) if words[0] != "forget" else ()))
    assert (ran.returncode, told in ran.stderr) == (status, True), ran.stderr
