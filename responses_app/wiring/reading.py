"""Reading what clients send, off the event loop where it is long, and few at once: each takes several times its size.

orjson and pydantic's lists hold Python's lock while they work, on a thread, too; so what one of their calls may take
is bounded by MAX_JSON_VALUES, MAX_INPUT_ITEMS and the largest body. The threads are shared fairly (`FairThreads`).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from engine import orjson
from responses_app.limits.suspects import Name, Running, current_holds, name_of
from responses_app.protocol.errors import FOREIGN_SEALS, NOTE, REFUSE, JsonObject, invalid_request, not_an_object
from responses_app.protocol.fields import IgnoredFields, header_choice, noting
from responses_app.protocol.json_text import check_lengths, loads_bounded
from responses_app.runs.plan.turns import FairThreads
from responses_app.settings.conf import Settings

READ_AT_ONCE = 4 * 1024  # bytes; what is longer is read on a thread: a schema takes up to 50 µs for each of its parts

Fields = TypeVar("Fields")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Waits:
    """Content of a suspect, which is not parsed before its trial."""

    name: Name
    content: bytes


class JsonReader:
    """Parses JSON within the bounds of one process. Sizes are in bytes."""

    def __init__(self, threads: FairThreads, settings: Settings, running: Running, *, max_items: int) -> None:
        """Keep the bounds; `running` has the content that is read, for whoever finds this process dead."""
        self.max_body_bytes = settings.max_body_bytes
        self.refuse_unknown = settings.unknown_fields == "refuse"
        self._foreign_seals = settings.foreign_seals
        self._max_values = settings.max_json_values
        self._max_items = max_items
        self._threads = threads
        self._running = running

    def loads(self, content: bytes) -> object:
        """Parse. Raises `orjson.JSONDecodeError`, and `ApiError` for what holds more than this server takes."""
        data = loads_bounded(content, max_values=self._max_values)
        if isinstance(data, dict):
            fields: JsonObject = data
            check_lengths(fields, max_items=self._max_items)
        return data

    def as_object(self, content: bytes) -> JsonObject:
        """Parse a body. Raises `ApiError`, also where it is no object."""
        try:
            data = self.loads(content)
        except orjson.JSONDecodeError as error:
            raise invalid_request(f"The body is not valid JSON: {error}.", code="invalid_json") from None
        if not isinstance(data, dict):
            raise not_an_object()
        return data

    def parsed(
        self,
        parse: Callable[[Fields], Result],
        foreign_seals: str | None,
        of_query: IgnoredFields | None,
        given: Fields | bytes,
    ) -> tuple[Result, IgnoredFields]:
        """Return what `parse` makes of a body or its fields, and all names that are ignored: `of_query` are first.

        Raises `ApiError`.
        """
        fields: Any = self.as_object(given) if isinstance(given, bytes) else given
        with self.noting(foreign_seals) as ignored:
            if of_query is not None:
                ignored.names, ignored.more = [*of_query.names], of_query.more
            return parse(fields), ignored

    def noting(self, foreign_seals: str | None = None) -> AbstractContextManager[IgnoredFields]:
        """Note what is ignored of what is read; `foreign_seals` is that header of its request. Raises `ApiError`."""
        seals = self._foreign_seals
        if foreign_seals is not None:
            seals = header_choice(FOREIGN_SEALS, foreign_seals, (REFUSE, NOTE), seals)
        return noting(refuse=self.refuse_unknown, foreign_seals=seals == NOTE)

    async def read(
        self, project: str, size: int, content: Callable[[], bytes], parse: Callable[[bytes], Result]
    ) -> Result:
        """Return what `parse` makes of the content of a project's request; on a thread if it is long.

        From before that on the request counts as running here, until `holding` is over and whatever shares that.
        Raises `ApiError` (503) for one that ends workers; one that may do so waits for its trial.
        """
        holds = current_holds()

        def begin() -> Result | _Waits:
            data = content()
            if holds is not None:
                name = name_of(project, data)
                if not self._running.begin(holds, project, name):
                    return _Waits(name, data)
            return parse(data)

        read = await self.run(project, size, begin)
        if not isinstance(read, _Waits):
            return read
        assert holds is not None, "nobody waits otherwise"
        waiting = read.content
        await self._running.stand_trial(holds, project, read.name)
        return await self.run(project, size, lambda: parse(waiting))

    async def run(self, project: str, size: int, work: Callable[[], Result]) -> Result:
        """Return what `work` makes of something of this size, a project's; on a thread if that is long."""
        if size <= READ_AT_ONCE:
            return work()
        return await self._threads.run(project, size, work)

    def close(self) -> None:
        """Let the threads end; no more that is long is parsed."""
        self._threads.close()
