"""Rollouts: an agent's loop of tool calls in one chain, over a transport, with new items only or with all of them."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from bench.vllm.client import Answer, JsonObject, ask, http, post, wake
from bench.vllm.servers import Contender
from tests.system.vllm.engines import full_blocks

CALLS = 30
FILE = "def handler(request, item, retries=3):\n    return request.send(item, retries=retries)\n" * 14
THOUGHT = (
    "The handler looks right at first sight, so the fault has to be in what it is given. The item may be None where "
    "the retries are used up, and then nothing says so. I have to read the next file before I can tell which it is."
)
READ_FILE = {
    "type": "function",
    "name": "read_file",
    "description": "Read a file of the project.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    "strict": False,
}
Ask = Callable[..., Awaitable[Answer]]
_numbers = itertools.count(1)  # each rollout begins with another message, so that none finds another one's cache


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """What one rollout took, in seconds. `engine` is, for each turn, how long the engine core had the request."""

    answers: Sequence[Answer]
    engine: Sequence[float]
    cpu: float

    @property
    def wall(self) -> float:
        """Return what the client waited for."""
        return sum(answer.total for answer in self.answers)

    @property
    def front_end(self) -> list[float]:
        """Return, for each turn, what the client waited for while the engine core did not have the request."""
        return [answer.total - engine for answer, engine in zip(self.answers, self.engine, strict=True)]

    @property
    def cached_share(self) -> float:
        """Return how many of the earlier turns' tokens came from the prefix cache, of all there were at each turn."""
        return sum(min(answer.cached_tokens, earlier) for earlier, answer in self._turns) / sum(self._earlier)

    @property
    def lost_tokens(self) -> int:
        """Return how many tokens were computed again though they stand in full blocks of earlier turns."""
        return sum(max(0, full_blocks(earlier) - answer.cached_tokens) for earlier, answer in self._turns)

    @property
    def _earlier(self) -> list[int]:
        return [answer.input_tokens + answer.output_tokens for answer in self.answers[:-1]]

    @property
    def _turns(self) -> list[tuple[int, Answer]]:
        return list(zip(self._earlier, self.answers[1:], strict=True))


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a client holds its conversation: over which transport, and what it sends again."""

    name: str
    open: Callable[[Contender], AbstractAsyncContextManager[Ask]]
    resends: bool = False


@asynccontextmanager
async def _socket(contender: Contender) -> AsyncIterator[Ask]:
    async with http() as session, session.ws_connect(f"{contender.url}/responses", max_msg_size=0) as socket:
        yield lambda **fields: ask(socket, store=False, **fields)


@asynccontextmanager
async def _stored(contender: Contender) -> AsyncIterator[Ask]:
    async with http() as session:
        yield lambda **fields: post(session, contender.url, store=True, **fields)


@asynccontextmanager
async def _unstored(contender: Contender) -> AsyncIterator[Ask]:
    async with http() as session:
        yield lambda **fields: post(session, contender.url, store=False, **fields)


WEBSOCKET = Way(name="WebSocket", open=_socket)
PREVIOUS = Way(name="HTTP with previous_response_id", open=_stored)
FULL_INPUT = Way(name="HTTP with the full input", open=_unstored, resends=True)


async def roll(contender: Contender, way: Way, calls: int = CALLS) -> Rollout:
    """Run the loop to its final message."""
    question = f"Rollout {next(_numbers)}. {_marker(CALLS - calls)} is wrong. Why?"
    new: list[JsonObject] = [{"role": "user", "content": question}]
    history: list[JsonObject] = []
    answers: list[Answer] = []
    async with http() as session:
        await wake(session, contender.url)
    clock = [contender.engine_seconds()]
    cpu = 0.0
    async with way.open(contender) as ask_:
        while new:
            history += new
            link = {"previous_response_id": answers[-1].response["id"]} if answers and not way.resends else {}
            before = contender.cpu_seconds()
            answers.append(await ask_(input=history if way.resends else new, tools=[READ_FILE], **link))
            cpu += contender.cpu_seconds() - before
            clock.append(contender.engine_seconds())
            output = answers[-1].response["output"]
            history += output
            new = [_output(item, CALLS - calls + len(answers)) for item in output if item["type"] == "function_call"]
    assert len(answers) == calls + 1, answers[-1].response
    return Rollout(answers=answers, engine=[after - before for before, after in itertools.pairwise(clock)], cpu=cpu)


def script() -> list[dict[str, object]]:
    """Return what the model says: a call after each file, a final message after the last one."""
    calls = [{"when": _marker(number), "say": _call(number)} for number in range(CALLS)]
    return [*calls, {"when": _marker(CALLS), "say": "<|channel|>final<|message|>It is the retries.<|return|>"}]


def _marker(number: int) -> str:
    return f"File number {number:03}"


def _output(call: JsonObject, number: int) -> JsonObject:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": f"{_marker(number)}\n{FILE}"}


def _call(number: int) -> str:
    """Return a call as models write it: with the recipient after the channel, or with the recipient before it."""
    recipient = " to=functions.read_file"
    header = (
        f"{recipient}<|channel|>commentary json"
        if number % 2
        else f"<|channel|>commentary{recipient} <|constrain|>json"
    )
    return (
        f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant{header}<|message|>"
        f'{{"path": "project/module_{number}.py"}}<|call|>'
    )
