"""The page with the figures of each agent and of each other client."""

import json
import re
from collections.abc import Sequence

from tests.system.agents.agent import Agent, Way
from tests.system.agents.loop import LOOP, Looped
from tests.system.agents.playing import HALF_WAY
from tests.system.agents.running import Done
from tests.system.agents.task import STEPS

HEAD = ("agent", "version", "API", "requests", "cut off", "failed", "tokens computed twice", "sent, KB a turn")
LOOP_HEAD = ("client", "version", "API", "turns", "tokens computed again")


def page(runs: Sequence[tuple[Agent, Way, Done]], loops: Sequence[tuple[Agent, Way, Looped]]) -> str:
    """Return the page, as the documentation has it."""
    table = _table(HEAD, [row(agent, way, done) for agent, way, done in runs])
    looped = _table(LOOP_HEAD, [loop_row(agent, way, done) for agent, way, done in loops])
    return f"""\
# Benchmark of coding agents

Each of these agents, unmodified, does one task of {len(STEPS)} turns in a repository. It reads and searches files,
edits them with its own tool, runs the tests until they pass, writes a file, and commits. The page shows how many
requests and bytes that takes, and whether the prefix cache keeps working when a worker dies.

No model runs: a script returns each turn, which is a thought and a call, or the answer. Two workers serve the agent,
with Redis between them. In turn {HALF_WAY + 1} the worker that serves the agent is killed. The agent retries by itself,
and continues on the other worker.

{table}

- **requests**: all requests that make the model generate. These include the warm-up of a WebSocket, and extra requests
  of the agent, such as one for a title.
- **cut off**: requests that broke when the worker was killed. All of them were retried; no task failed.
- **failed**: requests that were answered with an error.
- **tokens computed twice**: tokens of a turn (its prompt and its output) that the next prompt does not repeat exactly,
  so that vLLM cannot take them from its prefix cache. They are counted in full blocks of 16 tokens, as in that cache.
  To make this hard, the script writes its calls in forms that a renderer would not reproduce: JSON with and without
  spaces, and the fields of Harmony's header in either order.
- **sent**: all bytes that the agent sends, with headers and the repeated request, divided by {len(STEPS)}. Over the
  WebSocket an agent sends only new items, its instructions and its tools. Over HTTP it sends the whole conversation.

## The same task on a real vLLM

The tests on a real vLLM (`make test-vllm`) run the task with Codex over the WebSocket, and with Claude Code and four of
its tools. The model has random weights, and vLLM is forced to output the script. The grammar of the request has to
accept each forced token. According to the cached tokens that vLLM counts, no full block (32 tokens there) of an earlier
turn is computed again, and no request fails.

## A task of ten calls with other clients

These clients do a shorter task in the same repository: {len(LOOP) - 1} calls and an answer, with one worker. The
script writes arguments as models do: with white space, escapes, and the keys in any order. Two turns say something
before they call. All of these clients send their whole history with each request. Many parse the arguments and write
them again, and many leave the reasoning out, or send it back as a text.

{looped}

- **tokens computed again**: as *tokens computed twice* in the first table, but every token counts, not only those in
  full blocks.

Continue uses the Responses API for models whose name begins with `gpt-5`. Two more clients were measured by hand with
the same script, with no token computed again:

- fast-agent 0.10.48, which needs Python 3.12 or newer: all four APIs and transports.
- Letta Code 0.32.18, without those of its dependencies that npm does not have: the three over HTTP.

`make agents` prints this page. The test suite runs the tasks of 30 turns.
"""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(each)} |" for each in (head, ("---",) * len(head), *rows))


def row(agent: Agent, way: Way, done: Done) -> tuple[str, ...]:
    """Return the cells of one run."""
    figures = done.figures
    counted = (figures.requests, figures.cut, figures.failed, figures.twice, round(figures.bytes_per_turn / 1000))
    return (agent.name, version(agent), way.value, *map(str, counted))


def loop_row(agent: Agent, way: Way, looped: Looped) -> tuple[str, ...]:
    """Return the cells of one run of the shorter task."""
    return (agent.name, version(agent), way.value, str(looped.turns), str(looped.again))


def version(agent: Agent) -> str:
    """Return which version of an agent does the task."""
    if agent.package:
        pinned = re.search(rf"^{re.escape(agent.package)}==(\S+)$", agent.manifest.read_text(), re.MULTILINE)
        assert pinned is not None, agent.name
        return pinned[1]
    (found,) = json.loads(agent.manifest.read_text())["dependencies"].values()
    return str(found)
