"""Which sandbox this machine has: each is tried, in the order of their strength, and the first that holds is used."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from responses_app.tools.sandbox.base import BaseSandbox, SandboxError
from responses_app.tools.sandbox.bubblewrap import Bubblewrap
from responses_app.tools.sandbox.cgroups import Cgroups, find_cgroups
from responses_app.tools.sandbox.escapes import escapes
from responses_app.tools.sandbox.interpreter import Interpreter, InterpreterError, find_interpreter
from responses_app.tools.sandbox.sandlock import Sandlock

logger = logging.getLogger("respsite.sandbox")

SANDBOXES: Sequence[type[BaseSandbox]] = (Bubblewrap, Sandlock)
_NO_START = "it does not start here"


@dataclass(frozen=True, slots=True)
class Choice:
    """What came of the trial: the sandbox and its Python, or why there is none.

    `problem` says so in whole sentences, which clients may read. `cgroups`: where containers have groups of
    their own.
    """

    sandbox: BaseSandbox | None
    interpreter: Interpreter | None
    problem: str = ""
    cgroups: Cgroups | None = None

    def between_calls(self) -> str:
        """Say what keeps containers still between calls."""
        return self.cgroups.described() if self.cgroups is not None else "no cgroup: each container is watched"


async def choose(wanted: str, python: str) -> Choice:
    """Return the sandbox of this name, or the first that holds for `auto`; `python` is the Python that runs in it."""
    try:
        interpreter = await asyncio.to_thread(find_interpreter, python)
    except InterpreterError as problem:
        logger.warning("SANDBOX_PYTHON: %s", problem)
        return Choice(None, None, "The setting SANDBOX_PYTHON names no Python that can be used.")
    reasons, cgroups = [], await asyncio.to_thread(find_cgroups)
    for kind in SANDBOXES:
        if wanted not in ("auto", kind.name):
            continue
        sandbox = kind()
        reason = sandbox.missing() or await _tried(sandbox, interpreter, cgroups)
        if reason == _NO_START and cgroups is not None:
            logger.warning("no cgroup for the containers of %s: they do not start in one", kind.name)
            cgroups = None
            reason = await _tried(sandbox, interpreter, None)
        if reason is None:
            choice = Choice(sandbox, interpreter, cgroups=cgroups)
            between = choice.between_calls()
            logger.info("code runs in a sandbox of %s with %s; %s", kind.name, interpreter.executable, between)
            return choice
        logger.warning("no sandbox of %s: %s", kind.name, reason)
        reasons.append(f"{kind.name}: {reason}")
    return Choice(None, None, f"No sandbox can be used here. {'; '.join(reasons)}.")


async def _tried(sandbox: BaseSandbox, interpreter: Interpreter, cgroups: Cgroups | None) -> str | None:
    """Return why a sandbox cannot be used, None if it holds."""
    try:
        possible = await escapes(sandbox, interpreter, cgroups)
    except (SandboxError, OSError) as problem:
        logger.warning("%s: %s", sandbox.name, problem.detail if isinstance(problem, SandboxError) else problem)
        return _NO_START
    return f"code in it could {', '.join(possible)}" if possible else None
