"""`Relay`: words from one worker to the one that runs a response, over the channel layer.

`CHANNEL_LAYERS` is the one place that names Redis. Without it the layer lies in this process's memory, nobody else
hears, and `reaches_others` says so. Nothing is streamed here, and a Redis that is away costs no response: the listener
comes back by itself.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

from channels.layers import InMemoryChannelLayer, get_channel_layer

from engine.errors import reason_of
from responses_app.kit.duty import end_tasks
from responses_app.protocol.errors import JsonObject

logger = logging.getLogger("respsite.relay")
_LAYERS_LOG = logging.getLogger("channels_redis.pubsub")

GROUP = "respsite-workers"
# What is said, each with the ids of responses, but where it says otherwise.
CANCEL = "cancel"  # whoever runs them
FORGET = "forget"  # they were deleted
FOLLOW = "follow"  # somebody follows them: keep their logs while they run
LOGGED = "logged"  # there is more in their logs
ENGINE = "engine"  # the states of engines have changed; the ids are names of models
OUTPUT = "output"  # what came of a call: whoever runs its response takes it, and answers
ANSWER = "answer"
OFTEN = (FOLLOW, LOGGED)  # nobody needs a line about each that could not be said: logs are looked at anyway
Take = Callable[[JsonObject], Awaitable[JsonObject | None]]

RETRY_SECONDS = 2.0  # after an outage, or where listening broke
SEND_SECONDS = 2.0  # bound of a publication
ANSWER_SECONDS = 7.0  # of an answer: what is kept before it may take 5 s


class Relay:
    """The way of this process to the others, with one listener."""

    def __init__(self, *, layer: Any = None) -> None:
        self._layer = layer or get_channel_layer()
        self._outages: tuple[type[Exception], ...] = (OSError, TimeoutError)
        if self.reaches_others:
            from redis.exceptions import RedisError  # not loaded where there is no Redis

            self._outages += (RedisError,)
        self._task: asyncio.Task[None] | None = None  # listens
        self._outage: asyncio.Task[None] | None = None  # waits for the end of one
        self._reason = ""  # of the present outage, without an address
        self._take: Take | None = None
        self._channel = ""  # where this process hears
        # Answers that are waited for, by the number of the question
        self._asked: dict[str, asyncio.Future[JsonObject]] = {}
        self._answering: set[asyncio.Task[None]] = set()  # outputs that are being taken here

    @property
    def reaches_others(self) -> bool:
        """Whether other processes hear what is said here."""
        return not isinstance(self._layer, InMemoryChannelLayer)

    @property
    def degraded(self) -> str | None:
        """One sentence for the operator while workers do not hear each other; None where they do, or where none could.

        It is public, so it names no address.
        """
        if self._outage is None or self._outage.done():
            return None
        return f"Workers do not hear each other through Redis ({self._reason})."

    def start(self, hear: Mapping[str, Callable[[Collection[str]], None]], *, take: Take | None = None) -> None:
        """Begin to listen: `hear` has what is called, by the word, with the ids of the responses that it is about.

        `take` takes the output of a tool, and returns what came of that, None where its response does not run here.
        """
        self._take = take
        self._task = asyncio.create_task(self._listen(hear), name="relay")
        _LAYERS_LOG.addFilter(self._hears_of_outage)

    async def aclose(self) -> None:
        """Stop listening."""
        _LAYERS_LOG.removeFilter(self._hears_of_outage)
        # The filter goes first: it could begin another outage's task.
        await end_tasks([self._task, self._outage, *self._answering])

    async def ask_to_cancel(self, response_id: str) -> bool:
        """Tell all workers to cancel a response; return whether the word went out."""
        return await self._tell(CANCEL, [response_id])

    async def ask_to_follow(self, response_id: str) -> bool:
        """Tell all workers that a response of theirs is followed here; return whether the word went out."""
        return await self._tell(FOLLOW, [response_id])

    async def tell_followers(self, response_ids: Collection[str]) -> bool:
        """Tell all workers that there is more of these responses in the store; return whether the word went out."""
        return await self._tell(LOGGED, response_ids)

    async def ask_to_forget(self, response_ids: Collection[str]) -> bool:
        """Tell all workers that responses were deleted; return whether the word went out."""
        return await self._tell(FORGET, response_ids)

    async def tell_of_engine(self, model: str) -> bool:
        """Tell all workers that a trainer changes a model's engine; return whether the word went out."""
        return await self._tell(ENGINE, [model])

    async def ask_to_take(self, told: JsonObject) -> JsonObject | None:
        """Give all workers an output of a tool; return the answer of the one whose it is, None where none comes."""
        if not self._channel:  # nothing is heard here yet
            return None
        question_id = uuid4().hex
        answer: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._asked[question_id] = answer
        try:
            if not await self._tell(
                OUTPUT, [str(told["response_id"])], told=told, asked=question_id, channel=self._channel
            ):
                return None
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        # The worker whose it is may have died, or nobody runs the response.
        except TimeoutError:
            return None
        finally:
            del self._asked[question_id]

    async def _tell(self, word: str, response_ids: Collection[str], **more: object) -> bool:
        if not self.reaches_others:
            return False
        try:
            await self._send({"type": word, "response_ids": list(response_ids), **more})
        except self._outages as problem:
            log = logger.debug if word in OFTEN else logger.warning
            log("the workers could not be told to %s %d responses: %s", word, len(response_ids), reason_of(problem))
            return False
        return True

    async def _send(self, message: dict[str, object]) -> None:
        async with asyncio.timeout(SEND_SECONDS):
            await self._layer.group_send(GROUP, message)

    def _hears_of_outage(self, record: logging.LogRecord) -> bool:
        """Filter the layer's own log: it listens again by itself, and writes a traceback each second until it can."""
        problem = record.exc_info[1] if record.exc_info else None
        if not isinstance(problem, self._outages):
            return True
        self._is_away(problem)
        return False

    def _is_away(self, problem: BaseException) -> None:
        """Say it once an outage, and when it is over."""
        from responses_app.limits.redis import reason  # not loaded where there is no Redis

        self._reason = reason(problem)
        if self._outage is None or self._outage.done():
            logger.warning("the channel layer is away: %s; workers do not hear each other", reason_of(problem))
            self._outage = asyncio.create_task(self._await_end(), name="relay outage")

    async def _await_end(self) -> None:
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                # Nobody acts on this word: it only tries whether the layer takes anything.
                await self._send({"type": "hello"})
            except self._outages:
                continue
            logger.info("the channel layer is back")
            return

    async def _listen(self, hear: Mapping[str, Callable[[Collection[str]], None]]) -> None:
        while True:
            try:
                await self._hear(hear)
            except self._outages as problem:
                self._is_away(problem)
            except Exception:
                logger.exception("the relay broke and listens again")
            await asyncio.sleep(RETRY_SECONDS)

    async def _answer(self, message: Mapping[str, Any]) -> None:
        """Take an output whose response runs here, and say what came of that."""
        try:
            answer = None if self._take is None else await self._take(message["told"])
            if answer is not None:
                async with asyncio.timeout(SEND_SECONDS):
                    words = {"type": ANSWER, "asked": message["asked"], "answer": answer}
                    await self._layer.send(message["channel"], words)
        except self._outages as problem:
            logger.warning("a worker could not be answered: %s", reason_of(problem))
        except Exception:
            logger.exception("the output of a tool could not be taken")

    async def _hear(self, hear: Mapping[str, Callable[[Collection[str]], None]]) -> None:
        # A new one each time: what was said to the old one during an outage is lost, and nobody waits for it.
        self._channel = channel = await self._layer.new_channel("relay")
        await self._layer.group_add(GROUP, channel)
        try:
            while True:
                message = await self._layer.receive(channel)
                word = str(message.get("type"))
                act = hear.get(word)
                if word == OUTPUT:
                    # A task of its own: taking an output waits for the store, and the listener must not.
                    task = asyncio.create_task(self._answer(message), name="relay answer")
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
                elif word == ANSWER:
                    waiting = self._asked.get(message["asked"])
                    # Not there any more where the answer came after ANSWER_SECONDS.
                    if waiting is not None and not waiting.done():
                        waiting.set_result(message["answer"])
                elif act is not None:  # a word of another version, or the one that tries whether Redis is back
                    act([str(response_id) for response_id in message["response_ids"]])
        finally:
            with suppress(*self._outages):  # it would take the place of the cancellation that ends this
                await self._layer.group_discard(GROUP, channel)
