"""The page of what the task cost each agent."""

import json
from collections.abc import Sequence

from tests.clients.agents.agent import Agent, Way
from tests.clients.agents.playing import HALF_WAY
from tests.clients.agents.running import Done
from tests.clients.agents.task import STEPS

HEAD = ("agent", "version", "API", "requests", "cut off", "failed", "tokens computed twice", "sent, KB a turn")


def page(runs: Sequence[tuple[Agent, Way, Done]]) -> str:
    """Return the page, as the documentation has it."""
    rows = [HEAD, ("---",) * len(HEAD), *(row(agent, way, done) for agent, way, done in runs)]
    table = "\n".join(f"| {' | '.join(each)} |" for each in rows)
    return f"""\
# What a task costs coding agents

Each of these agents, as its makers publish it, does one task of {len(STEPS)} turns in a repository: it reads and
searches files, edits them with its own tool, runs the tests until they pass, writes a file, and commits. A script plays
the model's part: in each turn a thought and a call, or the answer. Two workers serve the agent, with Redis between
them, and in turn {HALF_WAY + 1} the one that is at work is killed: the agent tries again by itself, and goes on with
the other one. `make agents` prints this page, and the test suite runs the same tasks.

{table}

- **requests**: those that have the model generate, with the warm-up of a WebSocket, and what an agent asks beside its
  task, such as a title for it.
- **cut off**: how many of them ended with the worker that was killed. No task failed.
- **failed**: how many were answered with an error.
- **tokens computed twice**: those in full blocks (16 tokens, as in vLLM's prefix cache) of a turn, its prompt and what
  the model said, that the next turn's prompt does not have as they were. The model spells its calls in several ways
  that no renderer gives back: the recipient before or behind the channel, JSON with and without spaces.
- **sent**: what the agent sends, headers and the repeated request too, divided by {len(STEPS)}. Over the WebSocket an
  agent only sends what is new of its conversation, with its instructions and tools; over HTTP it sends all of it.

The tests on a real vLLM (`make test-vllm`) run the task too, with Codex over the WebSocket, and with Claude Code and
four of its tools. The model has no weights, and vLLM is made to sample the same script, each token of which its own
copy of the request's grammar has to accept. By the cached tokens that vLLM counts, it computes no full block (32 tokens
there) of an earlier turn again, and no request fails.
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
