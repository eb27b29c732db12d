"""Ending a stream over HTTP whose caller may not ask any more: the key was revoked, or the session is over.

The connection is closed in the middle of the answer, as clients take a clean end for the whole; who asks again hears a
401. A WebSocket says so itself (`web.sockets.connection`).
"""

import asyncio
import logging

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from responses_app.web.http import caller_of, cut_of, request_id_of
from responses_app.wiring.site import get_site

logger = logging.getLogger("respsite.transport")


def end_with_caller(request: HttpRequest, answer: HttpResponseBase) -> None:
    """Watch who asks for a stream until the task that sends it, which is the current one, has ended."""
    caller, cut, sending = caller_of(request), cut_of(request), asyncio.current_task()
    if not (answer.streaming and caller.is_known and cut is not None and sending is not None):
        return

    def lost() -> None:
        over = "API key opens no more" if caller.key else "session is over"
        logger.info("the answer to request %s ends: its %s", request_id_of(request), over)
        # It lasts until the server has noticed that the connection is gone, and cancels the sending.
        cutting = asyncio.ensure_future(cut())
        sending.add_done_callback(lambda _: cutting.cancel())

    unwatch = get_site().door.watch(caller, lost)
    sending.add_done_callback(lambda _: unwatch())
