"""Errors of engines, of stores and between workers → what clients see. Their own texts stay in the log."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    GrammarBroken,
    GrammarRefused,
    NotRendered,
    PictureGone,
    PicturesRefused,
    PromptTooLong,
    TurnEnded,
)
from responses_app.kit.errors import NotMigrated, StoreError
from responses_app.protocol.errors import (
    SERVER_STOPPED,
    ApiError,
    ResponseError,
    context_length_exceeded,
    invalid_request,
    overloaded,
    rate_limited,
    server_error,
)
from responses_app.protocol.pictures import PictureUnreadable
from responses_app.protocol.rollouts.weights import broken_rule

logger = logging.getLogger("respsite.runs")

NOT_RENDERED = (
    "The model's chat template does not take this conversation, as it is: the roles of its messages, their order, or "
    "its tools. The server's log says what the template says."
)
GONE = "An image of this conversation is not there any more: it was deleted."
BROKEN = "The model said what the request's tools, tool_choice or text.format do not allow. Send the request again."
DELETED = "The stored answer was deleted while the model wrote it, so it was cancelled."
CANCELLED = "The answer was cancelled while the model wrote it."
ENDED = "The engine was paused, and what was running was ended for that. Send the request again."
# Why a response failed; None stands for an error of this server.
Cause = EngineError | StoreError | ApiError | None
RESTART_SECONDS = 2  # what a client waits before it asks a server that stopped again


def refusal(error: EngineError, request_id: str) -> ApiError:
    """Return the error for a request that never started: no response object tells of it."""
    return _as_error(error) or _broken(error, request_id, "processing_error")


@contextmanager
def engine_errors(request_id: str) -> Iterator[None]:
    """Raise what an engine raises in here, where it renders a prompt, as the error for a request that never started."""
    try:
        yield
    except EngineError as error:
        logger.warning("request %s: no prompt: %s: %s", request_id, type(error).__name__, error)
        raise refusal(error, request_id) from error


def store_away(error: StoreError) -> ApiError:
    """The store fails; the log says why, and the client is told what an operator can do at once."""
    text = str(error) if isinstance(error, NotMigrated) else "The response store cannot be reached. Try again shortly."
    return overloaded(text, retry_after=2)


@contextmanager
def store_errors() -> Iterator[None]:
    """Raise what a store raises in here as the error that clients read."""
    try:
        yield
    except StoreError as error:
        raise store_away(error) from error


def out_of_reach() -> ApiError:
    """Another worker runs a response, and cannot be told anything (503)."""
    return overloaded(
        "Another worker runs this response, and workers reach each other through Redis only (REDIS_URL).",
        retry_after=5,
    )


def not_answered() -> ApiError:
    """The worker that runs a response has not answered (503)."""
    return overloaded("The worker that runs this response did not answer. Try again.", retry_after=5)


def unanswered(error: Cause | ResponseError, request_id: str) -> ApiError:
    """Return the error for a request that got a response which failed, or decided by itself that it failed."""
    if isinstance(error, dict):
        return ApiError(error["message"], status=500, type="server_error", code=error["code"])
    return _as_error(error) or _broken(error, request_id, "server_error")


def without_answer(problem: ApiError | None, *, deleted: bool) -> ApiError:
    """Return the error for who waited for an answer that does not come; `problem` is what the run says of it.

    None is a response that was cancelled: by a client or an operator, who may have deleted it, or by the project's
    retention.
    """
    if problem is not None:
        return problem
    if deleted:
        return invalid_request(DELETED, code="response_deleted")
    return invalid_request(CANCELLED, code="response_cancelled")


def _broken(error: Cause, request_id: str, code: str) -> ApiError:
    return server_error(request_id, code=code, of="server" if error is None else "engine")


def _as_error(error: Cause) -> ApiError | None:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, StoreError):
        return store_away(error)
    return _of_engine(error)


def _of_engine(error: EngineError | None) -> ApiError | None:
    match error:
        case PromptTooLong():
            return context_length_exceeded(error.prompt_tokens, error.max_model_len)
        case NotRendered():
            return invalid_request(NOT_RENDERED, param="input", code="invalid_value")
        case PicturesRefused():
            return invalid_request(error.reason, param="input", code="invalid_value")
        case PictureGone():
            return invalid_request(GONE, param="input", code="invalid_value")
        case GrammarRefused():  # an engine may find out only when it is to generate
            return invalid_request(error.reason, param="tools", code="invalid_value")
        case GrammarBroken():
            return ApiError(BROKEN, status=500, type="server_error", code="server_error")
        case EngineOverloaded():
            return rate_limited("The engine is full. Try again shortly.", retry_after=error.retry_after)
        case TurnEnded():
            return overloaded(ENDED, retry_after=RESTART_SECONDS)
        case EngineUnavailable():
            message = f"The model is loading or its engine is away. Try again in {error.retry_after} s."
            return overloaded(message, retry_after=error.retry_after)
    return broken_rule(error)


def server_stopped() -> ResponseError:
    """Return the `error` object of a response that was running when its server stopped."""
    return {**SERVER_STOPPED}


def window_over() -> ResponseError:
    """Return the `error` object of a response that was not done within its `completion_window`."""
    return {
        "code": "server_error",
        "message": "The response was not done within its 'completion_window': the engine had too much to do. Send it "
        "again, with a longer window, or without one.",
    }


def unanswered_by_stopped_server() -> ApiError:
    """Return the same as an error: another worker may answer, or this one's next start."""
    return overloaded(SERVER_STOPPED["message"], retry_after=RESTART_SECONDS)


def failure(error: Cause, request_id: str) -> ResponseError:
    """Return the `error` object of a response that failed after `response.created`.

    Its codes are those of OpenAI's ResponseErrorCode, and for roll-outs that want weights those of `broken_rule`.
    """
    match error:
        case EngineOverloaded():
            message = f"The engine is full. Please try again in {error.retry_after}s."
            return {"code": "rate_limit_exceeded", "message": message}
        case EngineUnavailable():
            message = f"The engine has stopped, or cannot be reached. Try again in {error.retry_after} s."
            return {"code": "server_error", "message": message}
    told = unanswered(error, request_id)
    if isinstance(error, EngineError) and broken_rule(error) is not None:
        return {"code": str(told.code), "message": told.message}
    return {"code": "invalid_prompt" if told.status < 500 else "server_error", "message": told.message}


def invalid_image(at: str, problem: PictureUnreadable) -> ApiError:
    """The image at this place of a request cannot be shown (400)."""
    message = f"Invalid image at '{at}': {problem}"
    if problem.is_away:
        return invalid_request(message, param=at, code="failed_to_download_image")
    return invalid_request(message, param=at, code="invalid_image")


def too_many_images(at: str, count: int, most: int) -> ApiError:
    """A request has more images than are read of one; `at` is the place of the first that is too many (400)."""
    return invalid_request(
        f"Too many images: this request has {count}, and this server takes {most} in one. Leave '{at}' and those "
        "behind it out.",
        param=at,
        code="invalid_image",
    )
