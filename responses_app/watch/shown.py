"""`Shown`: a response as its page and the comparison show it: its row, what it has said so far, and its timeline."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asgiref.sync import async_to_sync

from responses_app.models import Response
from responses_app.protocol.errors import ApiError, response_not_found
from responses_app.protocol.requests.resources import RUNNING
from responses_app.protocol.response.timeline import Timeline, guess, untimed
from responses_app.runs.watching import Watched
from responses_app.watch.transcript import as_dict, as_list
from responses_app.wiring.wiring import get_site

LARGEST = 8 << 20  # bytes of a response whose input a page reads
_ALWAYS = {"id", "created_at", "output", "usage"}  # fields of a whole object


@dataclass(frozen=True, slots=True)
class Shown:
    """A response as a page shows it."""

    row: Response  # without its request
    body: dict[str, Any]  # the object as clients know it, with what of the output there is
    input_items: Sequence[Any] | None  # None: too large to be read
    timeline: Timeline
    now: int  # Unix milliseconds
    ttl: float = 0.0  # for how many seconds the others of its chain are shown; 0: as long as they are kept
    unknown: str = ""  # why clients cannot read it now

    @property
    def id(self) -> str:
        """The id by which clients know it."""
        return str(self.body["id"])

    @property
    def running(self) -> bool:
        """Whether more will come."""
        return self.body["status"] in RUNNING


def shown_to_clients(project: str, response_id: str, *, ttl: float) -> Shown:
    """Return a response as clients of its project may see it. Raises `ApiError`: 404, 503."""
    watched = async_to_sync(_look)(project, response_id)
    row = Response.objects.defer("body", "request").filter(pk=watched.response_id, project=project).first()
    if row is None:  # it was deleted meanwhile
        raise response_not_found(response_id)
    return _shown(row, watched, items=row.input_items, ttl=ttl)


def shown_to_staff(row: Response) -> Shown:
    """Return any response that is kept, also one that clients do not find any more, or whose object is damaged."""
    fits = row.size <= LARGEST
    if fits:
        row.refresh_from_db(fields=["body", "input_items"])
    kept = as_dict(row.body) if fits else {}
    items = row.input_items if fits else None
    unknown = "Its stored object is damaged." if fits and not kept.keys() >= _ALWAYS else ""
    if not unknown:
        try:
            return _shown(row, async_to_sync(_look)(row.project, row.pk), items=items)
        except ApiError as error:
            unknown = error.message
    body: Any = {**kept, "id": row.pk, "status": row.status}
    timeline = untimed(int(row.created_at.timestamp() * 1000), body.get("usage"))
    return _shown(row, Watched(row.pk, body, timeline, int(time.time() * 1000)), items=items, unknown=unknown)


async def _look(project: str, response_id: str) -> Watched:
    """Look at a response; on the event loop of the server, which the view's thread belongs to."""
    return await get_site().responses.watch(project, response_id)


def _shown(row: Response, watched: Watched, *, items: object, ttl: float = 0.0, unknown: str = "") -> Shown:
    """Put it together; a timeline without times is told what the response's row knows."""
    body: Any = watched.response
    timeline, first, took = watched.timeline, row.first_token_ms, row.duration_ms
    ended = None if took is None else timeline.created + took
    guess(timeline, first_token=None if first is None else timeline.created + first, ended=ended)
    if timeline.ended is None and not watched.is_running:
        for phase in timeline.phases[-1:]:  # its worker died, and its log has no end
            phase.ended = timeline.ended = max(phase.began, ended or phase.began)
    return Shown(row, body, None if items is None else as_list(items), timeline, watched.now, ttl, unknown)
