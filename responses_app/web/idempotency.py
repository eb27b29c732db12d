"""Requests that come with an `Idempotency-Key`: carried out once, and answered as often as they are sent.

`once` stands before an endpoint's handler. It claims the key, and then one of these happens:

    nobody has had the key       the handler is called, in a task of its own: it outlives its client
    its request is carried out   it is waited for; a stream is followed as it comes
    its request has an answer    that is given again: of a stored response by `Endpoint.replay`, else as it was kept
    it is another request's      422

`runs.idempotency` has what holds behind that, and what happens where a worker dies.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from hashlib import blake2b

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import ApiError, stopping
from responses_app.protocol.idempotency import (
    IDEMPOTENCY_KEY,
    REPLAYED,
    AnswerHead,
    IdempotencyRecord,
    KeyState,
    answer_deleted,
    answer_lost,
    answer_too_long,
    answer_unreadable,
    checked_key,
    key_reused,
)
from responses_app.protocol.requests.resources import Status
from responses_app.protocol.rollouts.requests import HEADER as ROLLOUT
from responses_app.protocol.sealing import SealBroken
from responses_app.protocol.transport import FORM_TYPE
from responses_app.runs.idempotency import HeldKey, IdempotencyKeys, Recording, in_pieces
from responses_app.runs.log.journal import Waiter
from responses_app.web.http import PING, ApiRequest, Cut

FIRST_LOOK_SECONDS = 0.01  # until the first look at what became of a request; each next pause is longer by a half
MAX_LOOK_SECONDS = 0.5
LEAVE_SECONDS = 5.0  # how long a request whose client left waits for its own carrying out: its body is closed then
# Headers that may change what any endpoint answers, or what is recorded of it.
CHANGING = ("OpenAI-Beta", "anthropic-beta", ROLLOUT)
READ_BYTES = 1 << 18  # of a body, for its digest

Handler = Callable[[], Awaitable[HttpResponseBase]]
# Gets the id of the response, and whether the first request has not been answered yet.
Replay = Callable[[ApiRequest, str, bool], Awaitable[HttpResponseBase | None]]
Decide = Callable[[ApiRequest], Awaitable[str]]  # the id of the stored response that a request makes; "" for none


def key_of(request: ApiRequest) -> str:
    """Return the key that a request came with. Raises `ApiError` (400) for what is none."""
    return checked_key(request.headers[IDEMPOTENCY_KEY])


class Once:
    """One request that came with a key."""

    def __init__(
        self,
        request: ApiRequest,
        key: str,
        carry_out: Handler,
        *,
        decide: Decide | None,
        replay: Replay | None,
        headers: tuple[str, ...],
    ) -> None:
        self._request = request
        self._key = key
        self._carry_out = carry_out
        self._decide = decide
        self._replay = replay
        self._headers = headers  # those of the request that change the answer
        self._project = request.caller.project
        self._serving = request.serving
        self._keys = request.serving.keys

    async def answer(self) -> HttpResponseBase:
        """Answer. Raises `ApiError`, and `StoreError`."""
        fingerprint = await asyncio.to_thread(fingerprint_of, self._request, self._headers)
        decided = ""
        if self._decide is not None:
            decided = await self._decide(self._request)
            rewind(self._request)
        while True:
            held, record = await self._keys.claim(self._project, self._key, fingerprint, object_id=decided)
            if record.fingerprint != fingerprint:
                raise key_reused()
            if held is not None:
                return await self._carried_out(held, record)
            answer = await self._await_answer(record)
            if answer is not None:
                answer[REPLAYED] = "true"
                return answer

    # What others carry out, or have carried out.

    async def _await_answer(self, record: IdempotencyRecord | None) -> HttpResponseBase | None:
        """Return the answer of the request that has the key; None where the key is free again."""
        pause = FIRST_LOOK_SECONDS
        while record is not None and record.state is not KeyState.FREE:
            answer = await self._answer_of(record)
            if answer is not None:
                return answer
            if record.is_orphan:
                return None
            if self._serving.is_draining():  # another worker may take its time
                raise stopping()
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, MAX_LOOK_SECONDS)
            record = await self._keys.look(self._project, self._key)
        return None

    async def _answer_of(self, record: IdempotencyRecord) -> HttpResponseBase | None:
        """Return an answer as far as there is one. Raises `ApiError` where there will be none."""
        if record.state is KeyState.CUT:
            raise answer_lost()
        if record.state is KeyState.TOO_LONG:
            raise answer_too_long()
        if record.object_id and self._replay is not None:
            answer = await self._replay(self._request, record.object_id, record.state is KeyState.RUNNING)
            rewind(self._request)
            if answer is None and record.state is KeyState.ANSWERED:
                raise answer_deleted(record.object_id)
            if record.state is KeyState.RUNNING and answer is not None and await self._was_error(record.object_id):
                # What the first client is told of it is an error, which lets go of the key.
                close_stream(answer, self._keys)
                return None
            return answer
        if record.head is None or not (record.head.streams or record.state is KeyState.ANSWERED):
            return None
        return await self._kept(record.head)

    async def _kept(self, head: AnswerHead) -> HttpResponseBase:
        """Return an answer that is kept, or is being kept."""
        pieces = self._pieces()
        headers = dict(head.headers)
        try:
            if head.streams:
                # Read once before, too: behind the head of an answer no error could be told.
                await self._keys.piece(self._project, self._key, 0)
                await anext(pieces)  # only a generator that has begun is closed in any case
                return StreamingHttpResponse(pieces, status=head.status, headers=headers)
            content = b"".join([piece async for piece in pieces if piece])
        except SealBroken:  # with a key of the server's that was taken away since
            raise answer_unreadable() from None
        return HttpResponse(content, status=head.status, headers=headers)

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield what is kept of an answer until it is whole; an empty piece first, see `server_sent`."""
        yield b""
        position, over = 0, False
        silent, ping_after = 0.0, self._serving.ping_seconds
        while True:
            pieces = await self._keys.piece(self._project, self._key, position)
            for piece in pieces:
                yield piece
            position += len(pieces)
            if pieces:
                silent = 0.0
            elif over:
                return
            else:
                record = await self._keys.look(self._project, self._key)
                # It is looked at once more: the last parts may have come between the two looks.
                over = record is not None and record.state is KeyState.ANSWERED
                if not over:
                    if record is None or record.is_orphan or record.state is not KeyState.RUNNING:
                        await _cut_off(self._request.cut)
                        return
                    await asyncio.sleep(MAX_LOOK_SECONDS)
                    silent += MAX_LOOK_SECONDS
                    if ping_after and silent >= ping_after:
                        silent = 0.0
                        yield PING

    # What is carried out here.

    async def _carried_out(self, held: HeldKey, record: IdempotencyRecord) -> HttpResponseBase:
        """Carry the request out, unless it was by a worker that died."""
        if record.epoch > 1 and held.object_id:
            try:
                stored = await self._stored(held)
                if stored is not None:
                    return stored
                # There is a response with that id, which is no answer.
                if await self._serving.responses.knows(held.project, held.object_id):
                    assert self._decide is not None
                    free = await self._decide(self._request)
                    rewind(self._request)
                    held = await self._keys.rename(held, free)
            except BaseException:  # its client may leave, too
                self._keys.settle(held, KeyState.FREE)
                raise
        task = self._keys.carry_out(self._perform(held), name="idempotent request")
        try:
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not _is_cancelled():  # the server has stopped
                raise stopping() from None
            # Its client left. Django closes the body when this returns, and the handler may not have read it yet.
            task.add_done_callback(self._drop)
            await asyncio.wait({task}, timeout=LEAVE_SECONDS)
            raise
        assert isinstance(answer, HttpResponseBase)
        return answer

    def _drop(self, task: "asyncio.Task[object]") -> None:
        """Close a stream that nobody reads: its client left before it began."""
        if not task.cancelled() and task.exception() is None:
            close_stream(task.result(), self._keys)

    async def _stored(self, held: HeldKey) -> HttpResponseBase | None:
        """Return the answer of the response that an earlier claim has made; None where there is none."""
        if await self._was_error(held.object_id):
            return None
        assert self._replay is not None, "only who replays responses decides of their ids"
        answer = await self._replay(self._request, held.object_id, False)
        rewind(self._request)
        if answer is not None:
            self._keys.settle(held, KeyState.ANSWERED)
            answer[REPLAYED] = "true"
        return answer

    async def _was_error(self, response_id: str) -> bool:
        """Whether a response failed before it said anything: that was an error, and an error is not an answer."""
        response = await self._serving.responses.response(self._project, response_id)
        return response is not None and response["status"] == Status.FAILED.value and not response["output"]

    async def _perform(self, held: HeldKey) -> HttpResponseBase:
        """Have the handler answer, and keep what it answers, or note why it does not."""
        self._request.decided_response = held.decided
        try:
            answer = await self._carry_out()
        except (ApiError, StoreError) as error:
            # What was refused has changed nothing. Of an error of the server's it is not known; a response tells.
            await self._keys.let_go(held, unchanged=isinstance(error, ApiError) and error.status < 500)
            raise
        except Exception:
            self._keys.settle(held, KeyState.FREE if held.object_id else KeyState.CUT)
            raise
        if held.object_id:
            self._keys.settle(held, KeyState.ANSWERED)
            return answer
        headers = {name.lower(): value for name, value in answer.items()}
        if self._request.ignored_fields is not None and (ignored := str(self._request.ignored_fields)):
            headers["respsite-ignored"] = ignored
        head = AnswerHead(status=answer.status_code, headers=headers, streams=answer.streaming)
        recording = Recording(self._keys, held, head)
        if isinstance(answer, StreamingHttpResponse):
            return self._recorded(answer, recording, headers)
        assert isinstance(answer, HttpResponse)
        for piece in in_pieces(answer.content):
            recording.add(piece)
        await recording.end(whole=True)
        return answer

    def _recorded(
        self, answer: StreamingHttpResponse, recording: Recording, headers: Mapping[str, str]
    ) -> HttpResponseBase:
        """Return a stream that is kept as it goes out, and to its end, also where its client leaves."""
        out = _Outgoing(self._serving.max_lag_bytes, self._request.cut)
        # What the handler cuts off is cut off for its client, and is not whole for others.
        if out.cut is not None:
            self._request.cut = out.cut_off
        self._keys.carry_out(_record(answer, recording, out), name="idempotent stream")
        return StreamingHttpResponse(out.chunks(), status=answer.status_code, headers=dict(headers))


class _Outgoing:
    """A stream on its way to the client that asked first. A client that falls too far behind is cut off."""

    def __init__(self, max_lag_bytes: int, cut: Cut | None) -> None:
        self.cut = cut
        self.is_cut = False  # the stream is not whole
        self._max_lag_bytes = max_lag_bytes
        self._chunks: deque[bytes] = deque()
        self._waiting = 0  # bytes
        self._over = False
        self._dropped = False
        self._news = Waiter()

    def add(self, chunk: bytes) -> None:
        """Send something."""
        if self._dropped:
            return
        self._chunks.append(chunk)
        self._waiting += len(chunk)
        if self._waiting > self._max_lag_bytes:
            self._dropped = True
            self._chunks.clear()
        self._news()

    def end(self) -> None:
        """Nothing more comes."""
        self._over = True
        self._news()

    async def cut_off(self) -> None:
        """The stream breaks off."""
        self.is_cut = True

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield what is sent."""
        while not self._dropped:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._waiting -= len(chunk)
                yield chunk
            if self._over:
                break
            await self._news.wait()
        if self._dropped or self.is_cut:
            await _cut_off(self.cut)


async def _record(answer: StreamingHttpResponse, recording: Recording, out: _Outgoing) -> None:
    """Read a stream to its end, for its client and for those who ask with the same key."""
    whole = False
    try:
        async with aclosing(aiter(answer)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                recording.add(chunk)
                out.add(chunk)
        whole = not out.is_cut
    finally:
        out.is_cut = out.is_cut or not whole
        out.end()
        await recording.end(whole=whole)


def _is_cancelled() -> bool:
    """Whether the task that asks is cancelled, and not only what it waits for."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


def close_stream(answer: object, keys: IdempotencyKeys) -> None:
    """Close an answer that is not sent, if it is a stream; `keys` wait for that."""
    if isinstance(answer, StreamingHttpResponse):
        closing = getattr(answer.streaming_content, "aclose", None)
        if closing is not None:
            keys.carry_out(closing(), name="unread stream")


async def _cut_off(cut: Cut | None) -> None:
    if cut is not None:
        await cut()


def rewind(request: ApiRequest) -> None:
    """Let the body be read once more."""
    request._stream.seek(0)  # the file that Django has read it into


def fingerprint_of(request: ApiRequest, headers: tuple[str, ...]) -> str:
    """Return what tells a request from others: its method, its path and query, these headers, and its body.

    The boundary of a form is left out: clients choose another one at each try.
    """
    boundary = (request.content_params or {}).get("boundary", "").encode()
    of_form = request.content_type == FORM_TYPE and bool(boundary)
    about = [str(request.method), request.path_info, request.META.get("QUERY_STRING", ""), str(request.content_type)]
    about += [f"{name}: {request.headers.get(name, '')}" for name in headers]
    # Only where they are there: most requests have none, and those are told apart as they always were.
    about += [f"{name}: {request.headers[name]}" for name in CHANGING if name in request.headers]
    digest = blake2b("\0".join(about).encode("utf-8", "surrogateescape"), digest_size=32)
    rewind(request)
    _digest_body(request._stream.read, digest.update, boundary if of_form else b"")
    rewind(request)
    return digest.hexdigest()


def _digest_body(read: Callable[[int], bytes], update: Callable[[bytes], None], without: bytes) -> None:
    rest = b""
    while piece := read(READ_BYTES):
        if not without:
            update(piece)
            continue
        *before, rest = (rest + piece).split(without)
        for part in before:
            update(part + b"\0")
        # What may be the beginning of another boundary waits for the next piece.
        keep = len(without) - 1
        update(rest[: max(0, len(rest) - keep)])
        rest = rest[max(0, len(rest) - keep) :]
    update(rest)
