"""Headers and fields that tell a router between us and its vLLM servers of a generation: pure functions.

`LlmD`: llm-d, and other endpoint pickers of the Gateway API's inference extension.
`Dynamo`: the front end of NVIDIA Dynamo.

Both take tokens by `/inference/v1/generate`, as vLLM does. A vLLM server ignores all that is said here, and no router
is told a name that a client has chosen: sessions and projects are digests.

As published in November 2026: "EPP HTTP Headers Reference" of llm-d 0.8, where `x-gateway-…` are the old names of
`x-llm-d-…`; `session-id-producer` and `kv-cache-retention` of llm-d's router; "Session IDs" and "NVIDIA Request
Extensions" of Dynamo 1.6, whose `nvext` refuses fields that it does not know.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.backends.base import OptionReader
from engine.errors import EngineConfigurationError
from engine.types import GenerationRequest

NONE, LLM_D, DYNAMO = "none", "llm-d", "dynamo"
ROUTERS = (NONE, LLM_D, DYNAMO)
FAIRNESS = ("project", "session")
# What llm-d's own plug-in for retention writes, and its bounds: of a session that has not come back for longer, nobody
# knows any more that it will.
RETAINED_PRIORITY = 70  # of 0 to 100: blocks of a lower one are evicted before
MIN_RETAINED, MAX_RETAINED = 1.0, 600.0  # seconds


class Router:
    """A router behind an engine's URL. This one is told nothing: vLLM servers themselves, or a plain proxy."""

    tells_the_end: bool = False  # it wants to know when a session is over

    def headers(self, request: GenerationRequest) -> Mapping[str, str]:
        """Return the headers that a generation is asked for with."""
        return {}

    def fields(self, request: GenerationRequest) -> Mapping[str, Any]:
        """Return the fields that stand in its body besides vLLM's."""
        return {}


NO_ROUTER = Router()


@dataclass(frozen=True, slots=True)
class LlmD(Router):
    """An endpoint picker. Who shares its capacity fairly is `fairness`: projects, or sessions."""

    objective: str = ""  # the name of an InferenceObjective in its cluster; empty for none
    fairness: str = "project"

    def headers(self, request: GenerationRequest) -> Mapping[str, str]:
        session, headers = request.session, dict[str, str]()
        if self.objective:
            headers |= _both("inference-objective", self.objective)
        if share := session.project if self.fairness == "project" else session.id:
            headers |= _both("inference-fairness-id", share)
        if session.id:
            headers["x-session-id"] = session.id
        if session.parent:
            headers["x-parent-session-id"] = session.parent
        return headers

    def fields(self, request: GenerationRequest) -> Mapping[str, Any]:
        session = request.session
        if session.back_in is None:
            return {}
        kept = min(max(session.back_in, MIN_RETAINED), MAX_RETAINED)
        directive = {"start": 0, "end": None, "priority": RETAINED_PRIORITY, "duration": round(kept, 3)}
        return {"retention_directives": [directive], "retention_scope": session.id}


def _both(name: str, value: str) -> Mapping[str, str]:
    """Return a header under its name of today, and under the one before, which older versions read alone."""
    return {f"x-llm-d-{name}": value, f"x-gateway-{name}": value}


class Dynamo(Router):
    """Dynamo's front end, which may keep a session at a worker, and lets go of what it holds once it is over."""

    tells_the_end = True

    def headers(self, request: GenerationRequest) -> Mapping[str, str]:
        session = request.session
        if not session.id:
            return {}
        headers = {"X-Dynamo-Session-ID": session.id}
        if session.parent:
            headers["X-Dynamo-Parent-Session-ID"] = session.parent
        if session.final:
            headers["X-Dynamo-Session-Final"] = "true"
        return headers

    def fields(self, request: GenerationRequest) -> Mapping[str, Any]:
        # There more is sooner, in vLLM less is. Nothing is said of what nobody knows: how long the answer will be.
        return {"nvext": {"agent_hints": {"priority": -request.priority}}} if request.priority else {}


def router_of(options: OptionReader) -> Router:
    """Return the router that an operator has chosen. Raises `EngineConfigurationError`."""
    kind = options.choice("router", ROUTERS)
    objective, fairness = options.text("router_objective"), options.choice("router_fairness", FAIRNESS)
    if (objective is not None or fairness is not None) and kind != LLM_D:
        raise EngineConfigurationError('router_objective and router_fairness are for {"router": "llm-d"} only.')
    if objective and not (objective.isascii() and objective.isprintable()):
        raise EngineConfigurationError("router_objective has characters that no HTTP header can carry.")
    if kind == DYNAMO:
        return Dynamo()
    return LlmD(objective or "", fairness or FAIRNESS[0]) if kind == LLM_D else NO_ROUTER
