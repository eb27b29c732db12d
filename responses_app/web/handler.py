"""`Handler`: Django's ASGI handler, in which a request of the API costs no thread.

Django starts a thread for each request, on which it runs what belongs to the begin and the end of one: closing the
database connections of that thread, and the like. The API uses none there, as the stores have threads of their own
(`stores.database.readers`); and that was a third of what the smallest answer costs. So requests of the API send
neither `request_started` nor `request_finished`. All others, the admin's among them, are Django's as ever.
"""

import asyncio
from typing import Any

from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler

from responses_app.web.routes import is_api_path


class Handler(ASGIHandler):
    """Serves HTTP."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] == "http" and is_api_path(scope["path"].removeprefix(scope.get("root_path", ""))):
            await self._serve(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        with body:
            request, refused = self.create_request(scope, body)
            if request is None:
                assert refused is not None  # one of the two is there
                await self.send_response(refused, send)
                return
            answering = asyncio.create_task(self._answer(request, send), name="answer")
            leaving = asyncio.create_task(receive(), name="disconnect")  # behind the body comes only this
            try:
                await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (answering, leaving):
                    task.cancel()
                await asyncio.wait((answering, leaving))
            if not answering.cancelled():  # else its client has left
                answering.result()

    async def _answer(self, request: Any, send: Any) -> None:
        await self.send_response(await self.run_get_response(request), send)
