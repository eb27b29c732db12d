"""Which session a request is told to belong to: one decision for all endpoints, and no two projects share one."""

from dataclasses import replace

import pytest

from engine.types import NO_SESSION, Session, digest_of
from responses_app.protocol.api_keys import DEFAULT_PROJECT
from responses_app.protocol.requests.requests import parse_create
from responses_app.protocol.rollouts.requests import HarnessSession, RolloutRef, ref_of
from responses_app.runs.plan.plan import Origin, session_of, session_of_branch, session_of_conversation
from tests.kit.fakes import Reading, Site
from tests.unit.runs.readers import converse

ORIGIN = Origin(transport="sse", project="p")
CODEX = {"session-id": "s", "thread-id": "s"}
AGENT_OF_CODEX = {"session-id": "s", "thread-id": "t"}


def origin(headers: dict[str, str], *, rollout: str = "", project: str = "p") -> Origin:
    ref = ref_of({**headers, **({"x-rollout-id": rollout} if rollout else {})}, "responses")
    return replace(ORIGIN, project=project, rollout=ref if rollout else None, harness=ref.harness)


def test_the_first_name_that_a_request_has_decides() -> None:
    every = {"root": "resp_1", "key": "k", "conversation": "conv_1"}
    in_rollout, alone = origin(CODEX, rollout="r"), origin(CODEX)
    sessions = [
        session_of(in_rollout, **every),
        session_of(in_rollout, root="resp_1", conversation="conv_1"),
        session_of(alone, root="resp_1", conversation="conv_1"),
        session_of(alone, root="resp_1"),
        session_of(ORIGIN, root="resp_1"),
    ]
    assert len({session.id for session in sessions}) == 5
    assert [session.shared for session in sessions] == [True, False, False, False, False]
    assert sessions[1].id == session_of_branch("p", "r", "s").id
    assert sessions[2] == session_of_conversation("p", "conv_1")


def test_a_name_goes_out_as_a_digest_and_no_two_projects_share_one() -> None:
    mine, yours = (session_of(origin(CODEX, project=project), root="resp_1") for project in ("p", "q"))
    assert mine.id != yours.id
    assert mine.project != yours.project
    assert all(len(name) == 32 and set(name) <= set("0123456789abcdef") for name in (mine.id, mine.project))
    assert session_of(origin(CODEX, project=DEFAULT_PROJECT), root="resp_1").project == ""
    assert digest_of("a", "b c") != digest_of("a b", "c") != digest_of("a", "b", "c")
    assert digest_of("\ud800") != digest_of("?"), "half a character is a name, too"


@pytest.mark.parametrize("rollout", ["", "r"])
def test_an_agent_of_a_harness_has_the_session_that_began_it_as_its_parent(rollout: str) -> None:
    first = session_of(origin(CODEX, rollout=rollout), root="resp_1")
    agent = session_of(origin(AGENT_OF_CODEX, rollout=rollout), root="resp_2")
    deeper = {**AGENT_OF_CODEX, "thread-id": "u", "x-codex-parent-thread-id": "t"}
    assert first.parent == ""
    assert agent.parent == first.id != agent.id
    assert session_of(origin(deeper, rollout=rollout), root="resp_3").parent == agent.id


def test_a_key_that_only_repeats_the_harness_is_no_shared_one() -> None:
    agent = session_of(origin(AGENT_OF_CODEX), root="resp_1", key="t")
    assert agent == session_of(origin(AGENT_OF_CODEX), root="resp_1")
    assert session_of(origin(AGENT_OF_CODEX), root="resp_1", key="mine").shared


def test_a_child_belongs_to_its_parent_and_nothing_has_no_child() -> None:
    parent = Session(id="x", project="p")
    one, two = parent.child("agent 1"), parent.child("agent 2")
    assert (one.parent, two.parent, one.project) == ("x", "x", "p")
    assert len({parent.id, one.id, two.id}) == 3
    assert NO_SESSION.child("agent 1") is NO_SESSION


async def test_a_harness_that_sends_everything_again_stays_in_its_session(site: Site) -> None:
    for text in ("one", "two"):
        asked = replace(ORIGIN, project=DEFAULT_PROJECT, harness=HarnessSession("s"))
        await Reading(site, await site.service.create(parse_create({"input": text}), asked)).to_the_end()
    one, two = (request.session for request in site.engine.requests)
    assert one == two == Session(id=digest_of(DEFAULT_PROJECT, "s"))


@pytest.mark.usefixtures("conversations")
async def test_a_conversation_is_one_session_whatever_it_is_continued_by(site: Site) -> None:
    await converse(site)
    for text in ("one", "two"):
        await site.ask(input=text, conversation="conv_1")
    one, two = (request.session for request in site.engine.requests)
    assert one == two == session_of_conversation(DEFAULT_PROJECT, "conv_1")


def test_a_ref_without_a_name_is_no_rollout() -> None:
    unnamed = replace(ORIGIN, rollout=RolloutRef(""))
    assert session_of(unnamed, root="cmpl_1") == session_of(ORIGIN, root="cmpl_1")
