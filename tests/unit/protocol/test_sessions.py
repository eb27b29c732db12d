"""What coding agents say of their sessions by headers, and the branches of roll-outs that are made of it."""

import pytest

from responses_app.protocol.rollouts.requests import MAX_SESSION, NO_HARNESS, HarnessSession, harness_session, ref_of


def claude(**ids: str) -> dict[str, str]:
    names = {"agent": "x-claude-code-agent-id", "parent": "x-claude-code-parent-agent-id"}
    return {"x-claude-code-session-id": "s", **{names[kind]: value for kind, value in ids.items()}}


CASES = {
    "nobody": ({}, NO_HARNESS, "main"),
    "an empty header": ({"session-id": " "}, NO_HARNESS, "main"),
    "Codex": ({"session-id": "s", "thread-id": "s"}, HarnessSession("s"), "s"),
    "Codex before it had threads": ({"session-id": "s"}, HarnessSession("s"), "s"),
    "an agent of Codex": ({"session-id": "s", "thread-id": "t"}, HarnessSession("s", "t", "s"), "s/t"),
    "an agent of an agent of Codex": (
        {"session-id": "s", "thread-id": "t", "x-codex-parent-thread-id": "p"},
        HarnessSession("s", "t", "p"),
        "s/t",
    ),
    "Claude Code": (claude(), HarnessSession("s"), "s"),
    "Claude Code's first agent": (claude(agent="s", parent="p"), HarnessSession("s"), "s"),
    "an agent of Claude Code": (claude(agent="a"), HarnessSession("s", "a", "s"), "s/a"),
    "an agent of an agent of Claude Code": (claude(agent="a", parent="p"), HarnessSession("s", "a", "p"), "s/a"),
    "an agent without a session": ({"x-claude-code-agent-id": "a"}, HarnessSession("", "a"), "a"),
    "OpenCode": ({"x-session-id": "s"}, HarnessSession("s"), "s"),
    "an agent of OpenCode": ({"x-session-id": "t", "x-parent-session-id": "s"}, HarnessSession("t", "", "s"), "t"),
    "its own parent": ({"x-session-id": "s", "x-parent-session-id": "s"}, HarnessSession("s"), "s"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_harness_says_whose_conversation_a_request_is(case: str) -> None:
    headers, said, branch = CASES[case]
    assert harness_session(headers) == said
    assert said.name == (said.agent or said.session)
    ref = ref_of(headers, "responses")
    assert (ref.harness, ref.branch) == (said, branch)


def test_what_a_header_says_is_bounded() -> None:
    assert len(harness_session({"session-id": "x" * 10_000}).name) == MAX_SESSION
