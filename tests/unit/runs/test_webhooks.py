"""`WebhookDeliverer`: pauses that grow, and endpoints that hang and hold up no others."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock, Mock

import pytest

from responses_app.resources.webhooks import duty as webhooks
from responses_app.resources.webhooks.duty import (
    ENDPOINT_PAUSE,
    FIRST_PAUSE,
    JITTER,
    LONGEST_ENDPOINT_PAUSE,
    LONGEST_PAUSE,
    PROJECT_ENDPOINTS_AT_ONCE,
    WebhookDeliverer,
)
from responses_app.resources.webhooks.model import WebhookDelivery, WebhookEndpoint
from responses_app.resources.webhooks.sender import Sent, WebhookSender
from responses_app.resources.webhooks.store import Attempt, Claimed, Webhooks
from tests.kit.waiting import eventually

REFUSED = Sent(500, "The receiver answered with status 500.")


def claimed(name: str, project: str = "p", *, failures: int = 0, attempts: Sequence[int] = (0,)) -> Claimed:
    """Return an endpoint with a message for each of these numbers of attempts."""
    endpoint = WebhookEndpoint(id=name, project=project, url="https://example.com/", failures=failures)
    due = [WebhookDelivery(pk=key, event_id=f"evt_{key}", attempts=made) for key, made in enumerate(attempts)]
    return Claimed(endpoint=endpoint, due=due)


class Receivers(WebhookSender):
    """Answers as `answer` says of an endpoint and an event."""

    seconds = 1.0

    def __init__(self, answer: Callable[[str, str], Sent | asyncio.Event]) -> None:
        self.answer = answer
        self.sent: list[str] = []

    async def send(self, endpoint: WebhookEndpoint, event_id: str, body: str, *, at: float) -> Sent:
        self.sent.append(endpoint.id)
        answer = self.answer(endpoint.id, event_id)
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return Sent(200)
        return answer

    async def aclose(self) -> None:
        pass


def mocked_store() -> Mock:
    """Return a store whose methods are awaited: Python 3.13 takes what wraps a plain function for plain."""
    awaited = ("has_work", "purge", "dispatch", "claim", "settle")
    return Mock(spec=Webhooks, **{name: AsyncMock() for name in awaited})


@asynccontextmanager
async def delivering(
    claims: list[Claimed], receivers: Receivers, jitter: float = 0.5
) -> AsyncIterator[dict[str, tuple[Sequence[Attempt], float]]]:
    """Deliver what is due; yield what was settled, by the endpoint."""
    settled: dict[str, tuple[Sequence[Attempt], float]] = {}

    async def claim(worker: str, *, lease_seconds: float, most: int, without: Collection[str]) -> Claimed | None:
        assert lease_seconds > receivers.seconds, "nobody else may claim what is under way"
        found = next((each for each in claims if each.endpoint.project not in without), None)
        if found is not None:
            claims.remove(found)
        return found

    async def settle(claimed: Claimed, attempts: Sequence[Attempt], *, worker: str, pause: float) -> None:
        settled[claimed.endpoint.id] = (attempts, pause)

    store = mocked_store()
    store.dispatch.return_value = False
    store.purge.return_value = 0
    store.claim.side_effect, store.settle.side_effect = claim, settle
    deliverer = WebhookDeliverer(store, receivers, worker="w", now=lambda: 5.0, jitter=lambda: jitter)
    deliverer.start()
    try:
        yield settled
    finally:
        await deliverer.aclose()


@pytest.mark.parametrize(
    ("failures", "attempts", "message_pause", "endpoint_pause"),
    [
        (0, 0, FIRST_PAUSE, ENDPOINT_PAUSE),
        (3, 2, FIRST_PAUSE * 4, ENDPOINT_PAUSE * 8),
        (10_000, 10_000, LONGEST_PAUSE, LONGEST_ENDPOINT_PAUSE),
    ],
)
@pytest.mark.parametrize(("jitter", "share"), [(0.5, 1.0), (0.0, 1 - JITTER), (1.0, 1 + JITTER)])
async def test_pauses_grow(
    failures: int, attempts: int, message_pause: float, endpoint_pause: float, jitter: float, share: float
) -> None:
    due = [claimed("a", failures=failures, attempts=[attempts])]
    async with delivering(due, Receivers(lambda *_: REFUSED), jitter) as settled:
        await eventually(lambda: "a" in settled)
    ((attempt,), pause) = settled["a"]
    assert (attempt.status_code, attempt.problem) == (500, REFUSED.problem)
    assert (attempt.pause, pause) == (pytest.approx(message_pause * share), pytest.approx(endpoint_pause * share))


async def test_an_endpoint_at_which_something_arrives_does_not_pause() -> None:
    due = [claimed("a", failures=3, attempts=[0, 0])]
    receivers = Receivers(lambda _, event: Sent(200) if event == "evt_1" else REFUSED)
    async with delivering(due, receivers) as settled:
        await eventually(lambda: "a" in settled)
    attempts, pause = settled["a"]
    assert ([each.pause for each in attempts], pause) == ([FIRST_PAUSE, 0.0], 0.0)


async def test_endpoints_that_hang_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "POLL_SECONDS", 60.0)
    over = asyncio.Event()
    due = [claimed(f"hangs {number}", "hanging") for number in range(PROJECT_ENDPOINTS_AT_ONCE + 3)]
    due += [claimed(f"good {number}", "good") for number in range(PROJECT_ENDPOINTS_AT_ONCE + 3)]
    receivers = Receivers(lambda name, _: over if name.startswith("hangs") else Sent(200))
    async with delivering(due, receivers) as settled:
        await eventually(lambda: len(settled) == PROJECT_ENDPOINTS_AT_ONCE + 3)
        assert all(name.startswith("good") for name in settled)
        hanging = sum(name.startswith("hangs") for name in receivers.sent)
        assert hanging == PROJECT_ENDPOINTS_AT_ONCE, "a project has only so many at once"
        over.set()
        await eventually(lambda: not due)


async def test_where_nothing_waits_nothing_is_asked_but_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "POLL_SECONDS", 0.01)
    store = mocked_store()
    store.has_work.return_value = False
    store.purge.return_value = 0
    deliverer = WebhookDeliverer(store, Receivers(lambda *_: Sent(200)), worker="w", now=lambda: 5.0)
    deliverer.start()
    await eventually(lambda: store.has_work.await_count > 2)
    await deliverer.aclose()
    store.dispatch.assert_not_awaited()
    store.claim.assert_not_awaited()
    store.purge.assert_awaited_once()  # what is old goes all the same, once a minute
