"""Which session a request belongs to: decided here for every endpoint, by the first of these that a request has.

    1  a key of its client (`prompt_cache_key`, `continuation_id`), unless that is the name of 4 again
    2  its roll-out, and the branch of that
    3  its conversation
    4  the session of its coding agent, by the agent's own headers
    5  the first response of its chain

A request that has none of the first four, and sends all that was said again, is a session of its own: nothing but its
prompt says what it continues.
"""

from engine.types import Session, digest_of
from responses_app.protocol.api_keys import DEFAULT_PROJECT
from responses_app.protocol.rollouts.generations import RolloutRef
from responses_app.protocol.rollouts.requests import branch_of
from responses_app.runs.plan.plan import Origin


def session_of(origin: Origin, *, root: str, key: str | None = None, conversation: str | None = None) -> Session:
    """Return the session of a request; `root` is the id of its chain's first response."""
    project, rollout, harness = origin.project, origin.rollout, origin.harness
    if key is not None and key != harness.name:
        return _session(project, key, shared=True)
    if rollout is not None and rollout.name:
        return session_of_branch(project, rollout.name, rollout.branch, parent=_parent_branch(rollout))
    if conversation is not None:
        return session_of_conversation(project, conversation)
    if harness.name:
        return _session(project, harness.name, parent=digest_of(project, harness.parent) if harness.parent else "")
    return _session(project, root)


def session_of_conversation(project: str, conversation: str) -> Session:
    """Return the session of a conversation."""
    return _session(project, conversation)


def session_of_branch(project: str, rollout: str, branch: str, *, parent: str = "") -> Session:
    """Return the session of a branch of a roll-out; `parent` is the branch that began it."""
    begun_by = digest_of(project, rollout, parent) if parent else ""
    return Session(id=digest_of(project, rollout, branch), parent=begun_by, project=_project(project))


def _session(project: str, name: str, *, parent: str = "", shared: bool = False) -> Session:
    return Session(id=digest_of(project, name), parent=parent, project=_project(project), shared=shared)


def _project(project: str) -> str:
    """Return how a project is called outside: the default one, where nobody is asked for a key, has no name there."""
    return "" if project == DEFAULT_PROJECT else digest_of(project)


def _parent_branch(rollout: RolloutRef) -> str:
    harness = rollout.harness
    if not harness.parent:
        return ""
    return branch_of(harness.session, "" if harness.parent == harness.session else harness.parent)
