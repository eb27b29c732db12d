"""The page of what the task cost each agent."""

import json
from collections.abc import Sequence

from tests.system.agents.agent import Agent, Way
from tests.system.agents.playing import HALF_WAY
from tests.system.agents.running import Done
from tests.system.agents.task import STEPS

HEAD = ("agent", "version", "API", "requests", "cut off", "failed", "tokens computed twice", "sent, KB a turn")


def page(runs: Sequence[tuple[Agent, Way, Done]]) -> str:
    """Return the page, as the documentation has it."""
    rows = [HEAD, ("---",) * len(HEAD), *(row(agent, way, done) for agent, way, done in runs)]
    table = "\n".join(f"| {' | '.join(each)} |" for each in rows)
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

`make agents` prints this page, and the test suite runs the same tasks.
"""


def row(agent: Agent, way: Way, done: Done) -> tuple[str, ...]:
    """Return the cells of one run."""
    figures = done.figures
    counted = (figures.requests, figures.cut, figures.failed, figures.twice, round(figures.bytes_per_turn / 1000))
    return (agent.name, version(agent), way.value, *map(str, counted))


def version(agent: Agent) -> str:
    """Return which version of an agent does the task."""
    (found,) = json.loads(agent.manifest.read_text())["dependencies"].values()
    return str(found)
