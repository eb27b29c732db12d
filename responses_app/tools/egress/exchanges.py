"""`Exchange`: a request that is passed on to a host, and the host's answer on its way back."""

import asyncio

import h11

from responses_app.protocol.transport import codings_in
from responses_app.tools.egress.masking import Mask
from responses_app.tools.egress.peers import Malformed, Peer, passed_on, raw_headers

ANSWER_SECONDS = 300.0  # in which a host begins its answer
MAX_INFORMATIONAL = 16  # answers of 1xx before the answer; none is passed on
_SWITCHING, _NO_CONTENT, _NOT_MODIFIED = 101, 204, 304


class Refused(Exception):
    """A request is not carried out; the text is a sentence for whoever made it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Exchange:
    """Between two peers; `mask` takes secrets out of the answer, None where there are none."""

    def __init__(self, client: Peer, upstream: Peer, mask: Mask | None) -> None:
        self._client = client
        self._upstream = upstream
        self._mask = mask

    async def run(self, head: h11.Request) -> None:
        """Pass all on, to the end of the answer: that may come before all of the request went.

        Raises `Refused` before the answer has begun. Else, as the answer is cut: `Malformed`, `OSError`,
        `TimeoutError`.
        """
        try:
            await self._upstream.send(head)
        except Malformed:
            raise Refused(400, "The request cannot be passed on as it is.") from None
        upload = asyncio.create_task(self._upload())
        answer = asyncio.create_task(self._answer(head.method))
        try:
            await asyncio.wait({upload, answer}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                upload.result()
            await answer
        finally:
            for each in (upload, answer):
                each.cancel()
            await asyncio.gather(upload, answer, return_exceptions=True)

    async def _upload(self) -> None:
        """Pass the body on. A host that has stopped reading may answer all the same: that is no error."""
        while True:
            if self._client.machine.they_are_waiting_for_100_continue:
                await self._client.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
            event = await self._client.event()
            if isinstance(event, h11.EndOfMessage):
                event = h11.EndOfMessage()  # without trailers: nobody looked at them
            elif not isinstance(event, h11.Data):
                raise OSError("the client is gone")
            try:
                await self._upstream.send(event)
            except OSError:
                return
            if isinstance(event, h11.EndOfMessage):
                return

    async def _answer(self, method: bytes) -> None:
        try:
            for _ in range(MAX_INFORMATIONAL + 1):
                response = await self._upstream.event(ANSWER_SECONDS)
                if not isinstance(response, h11.InformationalResponse):
                    break
                if response.status_code == _SWITCHING:
                    raise Refused(502, "The host has changed the protocol, which is not passed on.")
            if not isinstance(response, h11.Response):
                raise Refused(502, "The host closed the connection without an answer.")
            head = self._masked(response, has_body=method != b"HEAD")
        except Malformed:  # without its text, which has what the host sent: that is not masked
            raise Refused(502, "The host did not answer as HTTP wants it.") from None
        except TimeoutError:
            raise Refused(504, "The host did not answer in time.") from None
        except OSError:
            raise Refused(502, "The connection to the host broke.") from None
        await self._client.send(head)
        await self._pass_body_back()

    async def _pass_body_back(self) -> None:
        while True:
            match await self._upstream.event():
                case h11.Data(data=content):
                    await self._send_body(bytes(content) if self._mask is None else self._mask.add(bytes(content)))
                case h11.EndOfMessage():
                    await self._send_body(b"" if self._mask is None else self._mask.end())
                    await self._client.send(h11.EndOfMessage())
                    return
                case _:
                    raise OSError("the host is gone")

    def _masked(self, response: h11.Response, *, has_body: bool) -> h11.Response:
        """Return the head of an answer as it goes back. Raises `Refused`, `Malformed`."""
        raw, status, reason = raw_headers(response), response.status_code, bytes(response.reason)
        if self._mask is None:
            return h11.Response(status_code=status, headers=passed_on(raw), reason=reason)
        if codings_in(raw):
            raise Refused(502, "The host answered with a compressed body, though it was asked not to.")
        # What takes the place of a secret has another length.
        changes = has_body and status not in (_NO_CONTENT, _NOT_MODIFIED)
        headers = passed_on(raw, *((b"content-length",) if changes else ()))
        masked = [(self._mask.whole(name), self._mask.whole(value)) for name, value in headers]
        try:
            return h11.Response(status_code=status, headers=masked, reason=self._mask.whole(reason))
        except h11.LocalProtocolError:  # its text may have what a header says
            raise Malformed("its head cannot be passed on") from None

    async def _send_body(self, content: bytes) -> None:
        if content:
            await self._client.send(h11.Data(data=content))
