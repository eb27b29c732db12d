"""How the handlers of a path are called, each for its method, and what clients are told of errors that they raise."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from responses_app.http import handler_of
from responses_app.protocol.errors import ApiError
from responses_app.runs.history import store_away
from responses_app.stores.base import StoreError

Answer = TypeVar("Answer", bound=HttpResponseBase)
Handlers = Mapping[str, Callable[..., Awaitable[Answer]]]
Refusals = Mapping[type[Exception], Callable[..., ApiError]]


async def dispatched(request: HttpRequest, handlers: "Handlers[Answer]", refusals: Refusals, *named: str) -> Answer:
    """Return what a path's handler for the request's method answers; it gets what the path `named`.

    `refusals` make the error that a client is told of one that the handler raises, and of what the path named. Raises
    `ApiError`; of any other `StoreError` 503.
    """
    handler = handler_of(request, handlers)
    try:
        return await handler(request, *named)
    except tuple(refusals) as problem:
        refuse = next(refuse for kind, refuse in refusals.items() if isinstance(problem, kind))
        raise refuse(problem, *named) from None
    except StoreError as error:
        raise store_away(error) from error
