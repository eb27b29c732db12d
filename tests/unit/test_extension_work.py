"""What fails in an extension, or does not end, holds up nothing else of a worker, and no path is another's."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from unittest import mock

import pytest

from responses_app.api.endpoints import ENDPOINTS, table_with
from responses_app.kit.duty import Duty
from responses_app.web.endpoint import Endpoint
from responses_app.wiring import extensions
from responses_app.wiring.extensions import ExtensionWork


class Guest:
    """An extension that fails at a `step`, and notes what is done with it."""

    def __init__(self, step: str = "") -> None:
        self.step = step
        self.tasks: list[asyncio.Task[None] | None] = []  # that entered, and left
        self.looked, self.may_end = asyncio.Event(), asyncio.Event()

    def serving(self, site: object) -> AbstractAsyncContextManager[None]:
        """Enter and leave."""
        return self._serving()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        self._fail("enter")
        self.tasks.append(asyncio.current_task())
        try:
            yield
        finally:
            self.tasks.append(asyncio.current_task())
            self._fail("leave")

    def duties(self, site: object) -> Iterable[Duty]:
        """Return one that goes on when it is cancelled, where that is the step."""
        self._fail("duties")
        return (Duty("a duty", self._look, 60.0),)

    async def _look(self) -> None:
        self.looked.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            if self.step == "go on":
                await self.may_end.wait()
            raise

    def _fail(self, step: str) -> None:
        if self.step == step:
            raise RuntimeError(step)


@pytest.mark.parametrize("step", ["enter", "duties"])
async def test_a_worker_ends_where_an_extension_does_not_start(step: str) -> None:
    first = Guest()
    with mock.patch.object(extensions, "extensions", return_value=[first, Guest(step)]), pytest.raises(SystemExit):
        await ExtensionWork().start(None)
    assert len(first.tasks) == 2, "it was not left"


@pytest.mark.parametrize(("step", "said"), [("", ""), ("leave", "did not end cleanly"), ("go on", "not ended within")])
async def test_all_are_left_by_the_task_that_entered_them(
    step: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    guests, work = [Guest(), Guest(step)], ExtensionWork()
    with (
        mock.patch.object(extensions, "extensions", return_value=guests),
        mock.patch.object(extensions, "ENDING_SECONDS", 0.01 if step == "go on" else 60.0),
    ):
        await work.start(None)
        await asyncio.gather(*(guest.looked.wait() for guest in guests))
        await work.aclose()
        await work.aclose()
    for guest in guests:
        guest.may_end.set()
    await asyncio.gather(*work._serving, *work._duties, return_exceptions=True)
    entered = {task for guest in guests for task in guest.tasks}
    assert [len(guest.tasks) for guest in guests] == [2, 2]
    assert len(entered) == 1
    assert (said in caplog.text) if said else not caplog.records


def _brings(label: str, path: str, *, tag: str = "Notes") -> Any:
    """Return an extension with one endpoint."""
    endpoint = Endpoint("GET", path, mock.AsyncMock(), "list", "List", tag=tag, scope=None)
    return mock.Mock(label=label, endpoints=lambda: (endpoint,))


@pytest.mark.parametrize(
    ("brought", "told"),
    {
        "the same path": (("/v1/models",), "/v1/models of the server"),
        "an unused method of it": (("/v1/responses",), "/v1/responses of the server"),
        "other names in it": (("/v1/models/{name:path}",), "/v1/models/{model:path} of the server"),
        "a path that a parameter takes": (("/v1/files/newest",), "/v1/files/{file_id} of the server"),
        "without its prefix": (("/files",), "/v1/files of the server"),
        "another extension's": (("/v1/notes", "/v1/notes"), "/v1/notes of the extension 'acme1'"),
    }.values(),
)
def test_a_path_that_another_endpoint_has_ends_the_start(brought: tuple[str, ...], told: str) -> None:
    brings = [_brings(f"acme{number}", path) for number, path in enumerate(brought)]
    with pytest.raises(SystemExit, match=re.escape(f"{brought[-1]}, and {told} has this path.")):
        table_with(brings)


def test_a_parameter_that_takes_the_paths_of_those_behind_it_ends_the_start() -> None:
    told = "GET /v1/{kind}, and /v1/conversations of the server has this path."
    with pytest.raises(SystemExit, match=re.escape(told)):
        table_with([_brings("acme", "/v1/{kind}", tag="Engine")])
    table_with([_brings("acme", "/v1/{kind}")])  # behind all others it takes what is left


def test_paths_of_their_own_stand_at_the_place_of_their_tag() -> None:
    table = [each.path for each in table_with([_brings("a", "/v1/notes"), _brings("b", "/v1/plans", tag="Engine")])]
    assert table[-1] == "/v1/notes"
    assert table.index("/v1/plans") < table.index("/v1/conversations")
    assert len({*table} - {each.path for each in ENDPOINTS}) == 2
