"""What coding agents say of their sessions, by headers of their own: whose conversation a request is, and who began it.

                  its session               one of its agents       who began that one (else its session did)
    Claude Code   x-claude-code-session-id  x-claude-code-agent-id  x-claude-code-parent-agent-id
    Codex         session-id                thread-id               x-codex-parent-thread-id
    OpenCode      x-session-id              a session of its own    x-parent-session-id

Headers with an underscore in their name (`session_id`, of old versions of Codex) reach no server: they are dropped, as
they could be taken for those with a hyphen.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HarnessSession:
    """Whose conversation a request is, in the words of its harness; empty where it says nothing."""

    session: str = ""
    agent: str = ""  # the one of its agents that asks; empty for the first one
    parent: str = ""  # the agent, or the session, that began this one

    @property
    def name(self) -> str:
        """The name of this conversation among all others of the harness."""
        return self.agent or self.session


NO_HARNESS = HarnessSession()
_HARNESSES = (  # headers: the session's, the agent's, the parent's
    ("session-id", "thread-id", "x-codex-parent-thread-id"),
    ("x-claude-code-session-id", "x-claude-code-agent-id", "x-claude-code-parent-agent-id"),
    ("x-session-id", "", "x-parent-session-id"),
)
HEADERS = tuple(name for names in _HARNESSES for name in names if name)
MAX_NAME = 256  # characters of a header that count


def harness_session(headers: Mapping[str, str]) -> HarnessSession:
    """Return the session that the headers of a request name; the first harness that names one is believed."""
    for of_session, of_agent, of_parent in _HARNESSES:
        session, agent, parent = (
            headers.get(name, "").strip()[:MAX_NAME] for name in (of_session, of_agent, of_parent)
        )
        if not (session or agent):
            continue
        if agent == session:
            agent = ""
        # The first agent has no parent but in OpenCode, where each agent has a session of its own.
        if of_agent and not agent:
            parent = ""
        elif agent and not parent:
            parent = session
        return HarnessSession(session, agent, "" if parent == (agent or session) else parent)
    return NO_HARNESS
