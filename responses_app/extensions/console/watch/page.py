"""The page of a response: what was asked and answered and when, what it cost, and what stands before and after it.

It is one page in two frames: in the admin, and at `/watch/` for whoever may read the response by the API.
`WatchedResponse` is what the page and the comparison show: a row, what was said so far, and a timeline. Who may see
figures and not content gets its shape: fields are named that stay, so that a new field of the object is content until
somebody has looked at it.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from asgiref.sync import async_to_sync
from django.utils.html import format_html
from django.utils.safestring import SafeString

from responses_app.extensions.console.watch.drawing import draw
from responses_app.extensions.console.watch.family import ChainTree, family_of
from responses_app.extensions.console.watch.text import (
    ADMIN_PAGE,
    NONE,
    Clipped,
    PageRoom,
    Places,
    ago,
    conversation_link,
    in_bytes,
    milliseconds,
    moment,
    pill,
    pretty,
    response_link,
    visible,
)
from responses_app.extensions.console.watch.transcript import (
    MAX_ITEMS,
    Block,
    PageTranscript,
    agents_of,
    as_dict,
    as_list,
)
from responses_app.models import Response
from responses_app.protocol.errors import ApiError, response_not_found
from responses_app.protocol.requests.resources import RUNNING
from responses_app.protocol.response.timeline import Timeline, guess, untimed
from responses_app.resources.rollouts.model import RolloutGeneration
from responses_app.runs.by_id import Watched
from responses_app.wiring.site import get_site

LARGEST = 8 << 20  # bytes of a response whose input a page reads
_ALWAYS = {"id", "created_at", "output", "usage"}  # fields of a whole object


@dataclass(frozen=True, slots=True)
class WatchedResponse:
    """A response as a page shows it."""

    row: Response  # without its request
    body: dict[str, Any]  # the object as clients know it, with what of the output there is
    input_items: Sequence[Any] | None  # None: too large to be read
    timeline: Timeline
    now: int  # Unix milliseconds
    ttl: float = 0.0  # for how many seconds the others of its chain are shown; 0: as long as they are kept
    unknown: str = ""  # why clients cannot read it now
    has_content: bool = True  # else it is its shape alone

    @property
    def id(self) -> str:
        """The id by which clients know it."""
        return str(self.body["id"])

    @property
    def running(self) -> bool:
        """Whether more will come."""
        return self.body["status"] in RUNNING

    def shape(self) -> "WatchedResponse":
        """Return it without what was written and answered."""
        timeline = unnamed(self.timeline)
        return replace(self, body=shape_of(self.body), input_items=(), timeline=timeline, has_content=False)


def shown_to_clients(project: str, response_id: str, *, ttl: float) -> WatchedResponse:
    """Return a response as clients of its project may see it. Raises `ApiError`: 404, 503."""
    watched = async_to_sync(_look)(project, response_id)
    row = Response.objects.defer("body", "request").filter(pk=watched.response_id, project=project).first()
    if row is None:  # it was deleted meanwhile
        raise response_not_found(response_id)
    return _shown(row, watched, items=row.input_items, ttl=ttl)


def shown_to_staff(row: Response) -> WatchedResponse:
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
    # As much as a template needs: the rest may be damaged.
    body: Any = {**kept, "id": row.pk, "status": row.status}
    timeline = untimed(int(row.created_at.timestamp() * 1000), body.get("usage"))
    return _shown(row, Watched(row.pk, body, timeline, int(time.time() * 1000)), items=items, unknown=unknown)


async def _look(project: str, response_id: str) -> Watched:
    """Look at a response; on the event loop of the server, which the view's thread belongs to."""
    return await get_site().responses.watch(project, response_id)


def _shown(row: Response, watched: Watched, *, items: object, ttl: float = 0.0, unknown: str = "") -> WatchedResponse:
    """Put it together; a timeline without times is told what the response's row knows."""
    body: Any = watched.response
    timeline, first, took = watched.timeline, row.first_token_ms, row.duration_ms
    ended = None if took is None else timeline.created + took
    guess(timeline, first_token=None if first is None else timeline.created + first, ended=ended)
    if timeline.ended is None and not watched.is_running:
        for phase in timeline.phases[-1:]:  # its worker died, and its log has no end
            phase.ended = timeline.ended = max(phase.began, ended or phase.began)
    return WatchedResponse(row, body, None if items is None else as_list(items), timeline, watched.now, ttl, unknown)


MAX_READ_ON = 3  # of the responses that continue this one whose input is read for outputs of its calls
TURNS = 10  # before this one, where they are asked for
RAW = 60_000  # characters of raw JSON on the page
# Together with LOOK_MS: 260 KB a second at most for each page that is open.
LIVE_ROOM = 60_000  # characters of a conversation that is sent anew again and again, while the response runs
LIVE_PICTURES = 200_000  # the same for its pictures: larger ones are named until it has ended
LOOK_MS = 1_000  # between two looks of a page that is live

Facts = list[tuple[str, str | SafeString]]
# Fields of the response object that tell a setting of its request.
_ASKED = (
    "max_output_tokens max_tool_calls parallel_tool_calls temperature top_p presence_penalty frequency_penalty "
    "top_logprobs truncation service_tier tool_choice prompt_cache_key safety_identifier user"
).split()
# The values that a page does not show, by the names that it shows.
_USUAL = {
    **{"parallel tool calls": True, "temperature": 1.0, "top p": 1.0, "presence penalty": 0.0},
    **{"frequency penalty": 0.0, "top logprobs": 0, "truncation": "disabled", "tool choice": "auto"},
    **{"service tier": "default", "text format": "text", "verbosity": "medium"},
}


@dataclass(slots=True)
class ShownTurn:
    """A response's part of the conversation."""

    response_id: str  # its own id
    created_at: datetime
    current: bool = False  # it is the one that the page is about
    instructions: Clipped | None = None  # of the current one
    blocks: list[Block] = field(default_factory=list)
    left_out: int = 0  # of its first items, which only the JSON has

    def read(self, transcript: PageTranscript, *lists: object) -> None:
        """Add items."""
        for items in lists:
            self.left_out += max(0, len(as_list(items)) - MAX_ITEMS)
            self.blocks += transcript.read(items)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where the page is shown."""

    page: str  # the name of the pages that its links lead to
    staff: bool  # its reader may see everything, in the admin


ADMIN = Surroundings(ADMIN_PAGE, staff=True)


def response_page(shown: WatchedResponse, frame: Surroundings, *, turns: str = "") -> dict[str, Any]:
    """Return what the template of the page needs. `turns`, if not empty, adds the turns before."""
    row, body, fits = shown.row, shown.body, shown.row.size <= LARGEST
    family = tree_of(shown)
    transcript = PageTranscript(PageRoom(LIVE_ROOM, pictures=LIVE_PICTURES) if shown.running else PageRoom())
    before = _ancestors(shown) if turns and shown.has_content else []
    conversation = [ShownTurn(each.pk, each.created_at) for each in before]
    for turn, each in zip(conversation, before, strict=True):
        turn.read(transcript, each.input_items, as_dict(each.body).get("output"))
    instructions = body.get("instructions")
    current = ShownTurn(row.pk, row.created_at, current=True)
    if isinstance(instructions, str):
        current.instructions = transcript.room.clip(instructions)
    current.read(transcript, shown.input_items, body.get("output"))
    _read_on(transcript, family)
    return {
        **summary(shown),
        "title": "Response",
        "name": row.pk if frame == ADMIN else shown.id,
        "frame": frame,
        "look_ms": LOOK_MS,
        "model": visible(row.model),
        "unknown": shown.unknown,
        "input_left_out": shown.input_items is None,
        "conversation": [*conversation, current],
        "family": family,
        "agents": agents_of(body.get("output")),
        "can_show_turns": shown.has_content and family.has_previous and not turns,
        "has_content": shown.has_content,
        "facts": _facts(shown, frame, family),
        "asked": _asked(body),
        "tools": _tools(body),
        "raw": _raw(body, shown.input_items) if fits and shown.has_content else [],
    }


def summary(shown: WatchedResponse, *, key: str = "run", scale: int = 0) -> dict[str, Any]:
    """Return what both the page and the comparison show of a response; see `draw` for `key` and `scale`."""
    status = shown.body["status"]
    return {
        "id": shown.id,
        "own_id": shown.row.pk,
        "status": status,
        "running": shown.running,
        "pill": pill(status),
        "problem": _problem(shown.body),
        "figures": _figures(shown),
        "picture": draw(shown.timeline, now=shown.now, key=key, scale=scale),
    }


def tree_of(shown: WatchedResponse) -> ChainTree:
    """Return the chain and the forks that a response stands in."""
    row = shown.row
    previous = row.previous_response_id
    return family_of(row.project, row.pk, previous=previous, ttl=shown.ttl, has_texts=shown.has_content)


def _ancestors(shown: WatchedResponse) -> list[Response]:
    """Return the responses before this one, oldest first, as far as they are known and not too large."""
    known = Response.objects.defer("request").filter(project=shown.row.project, size__lte=LARGEST // TURNS)
    if shown.ttl:
        known = known.filter(created_at__gt=datetime.now(UTC) - timedelta(seconds=shown.ttl))
    ancestors: list[Response] = []
    previous = shown.row.previous_response_id
    while previous and len(ancestors) < TURNS:
        response = known.filter(pk=previous).first()
        if response is None:
            break
        # Each query finds the one before, so the list grows at its front.
        ancestors.insert(0, response)
        previous = response.previous_response_id
    return ancestors


def _read_on(transcript: PageTranscript, family: ChainTree) -> None:
    """Find outputs of this response's calls in the input of those that continue it."""
    if not transcript.unanswered():
        return
    small = Response.objects.filter(pk__in=family.following, size__lte=LARGEST // MAX_READ_ON).order_by("pk")
    for pk, items in small.values_list("pk", "input_items")[:MAX_READ_ON]:
        transcript.read_answers(items, pk)


def _problem(body: dict[str, Any]) -> tuple[str, str] | None:
    """Return why it ended as it did: a title and a sentence."""
    error, incomplete = body.get("error"), body.get("incomplete_details")
    if isinstance(error, dict):
        return f"Failed: {visible(error.get('code') or 'error')}", visible(error.get("message") or "")[:2_000]
    if isinstance(incomplete, dict):
        reason = visible(incomplete.get("reason") or "unknown reason")
        return "Incomplete", f"The answer was cut short: {reason.replace('_', ' ')}."[:2_000]
    return None


def _figures(shown: WatchedResponse) -> list[tuple[str, str, str]]:
    """Return the numbers that stand at the top: a name, a value, a remark."""
    row, timeline = shown.row, shown.timeline
    turns = timeline.turns
    sent = row.input_tokens or sum(turn.input for turn in turns)
    cached = row.cached_tokens or sum(turn.cached for turn in turns)
    made = row.output_tokens or sum(turn.output for turn in turns)
    at_first = next((turn.first_token for turn in turns if turn.first_token is not None), None)
    first = row.first_token_ms if at_first is None else at_first - timeline.created
    took = timeline.milliseconds(shown.now)
    # Without the time to the first token: how fast the model says what it says.
    seconds = (took - (first or 0)) / 1_000
    rate = f"{made / seconds:,.0f} tokens/s" if first and made and seconds > 0 else ""
    reasoning = as_dict(as_dict(shown.body.get("usage")).get("output_tokens_details")).get("reasoning_tokens")
    thought = f"{reasoning:,} reasoning" if isinstance(reasoning, int) and reasoning else ""
    return [
        ("Turns", f"{max(1, len(turns)):,}", ""),
        ("Tokens in", f"{sent:,}", f"{cached:,} cached" if cached else ""),
        ("Tokens out", f"{made:,}", thought),
        ("First token", milliseconds(first), ""),
        ("Duration", milliseconds(took), "so far" if timeline.ended is None else rate),
    ]


def _facts(shown: WatchedResponse, frame: Surroundings, family: ChainTree) -> Facts:
    row = shown.row
    facts: Facts = [
        ("Created", format_html("{} UTC, {}", moment(row.created_at), ago(row.created_at, datetime.now(UTC)))),
        ("Model", visible(row.model)),
        ("Transport", visible(row.transport) or NONE),
        ("Background", "yes" if row.background else "no"),
        ("Project", visible(row.project)),
        ("Size", in_bytes(row.size)),
    ]
    if shown.id != row.pk:
        facts += [("Stored as", visible(row.pk)), ("Known as", visible(shown.id))]
    if row.worker and frame.staff:
        facts += [("Worker", visible(row.worker))]
    if row.conversation_id:
        in_admin = frame.staff and conversation_link(row.conversation_id)
        facts += [("Conversation", in_admin or visible(row.conversation_id))]
    if rollout := rollout_of(row, is_staff=frame.staff):
        facts += [("Roll-out", rollout)]
    if previous := row.previous_response_id:
        kept = family.has_previous
        before = response_link(previous, page=frame.page) if kept else f"{visible(previous)} (not kept)"
        facts += [("Continues", before)]
    return facts


def rollout_of(row: Response, *, is_staff: bool) -> SafeString | None:
    """Return the link to a response's generation in the roll-out that it is recorded in; None where it is in none."""
    found = RolloutGeneration.objects.filter(response_id=row.pk, rollout__project=row.project).select_related("rollout")
    generation = found.only("number", "rollout__name", "rollout__project").order_by("number").first()
    if generation is None:
        return None
    rollout, number = generation.rollout, generation.number
    url = f"{Places(is_staff=is_staff).rollout(rollout, g=number)}#g{number}"
    return format_html('<a id="rollout" href="{}">{}</a> g{}', url, rollout.name, number)


def _asked(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the settings of the request that are not the usual ones."""
    reasoning, text = as_dict(body.get("reasoning")), as_dict(body.get("text"))
    values = {
        "reasoning effort": reasoning.get("effort"),
        "reasoning summary": reasoning.get("summary"),
        "text format": as_dict(text.get("format")).get("type"),
        "verbosity": text.get("verbosity"),
        **{name.replace("_", " "): body.get(name) for name in _ASKED},
        **{f"metadata {key}": value for key, value in list(as_dict(body.get("metadata")).items())[:16]},
    }
    unusual = ((name, value) for name, value in values.items() if value is not None and value != _USUAL.get(name))
    texts = ((name, value if isinstance(value, str) else pretty(value)) for name, value in unusual)
    return [(visible(name)[:80], visible(text)[:200]) for name, text in texts]


def _tools(body: dict[str, Any]) -> list[str]:
    """Return the names of the tools that the model was offered."""
    tools = [as_dict(tool) for tool in as_list(body.get("tools"))]
    names = [visible(tool.get("name") or tool.get("server_label") or tool.get("type") or "?")[:80] for tool in tools]
    return [*names[:50], *([f"and {len(names) - 50} more"] if len(names) > 50 else [])]


def _raw(body: object, input_items: object) -> list[tuple[str, Clipped]]:
    room = PageRoom()
    return [
        ("Response object", room.clip(pretty(body), shown=RAW, folded=0)),
        ("Input items", room.clip(pretty(input_items), shown=RAW, folded=0)),
    ]


# Numbers, switches, ids and words of the API's own; no text of a client or a model.
_STAYS = frozenset(
    "id object created_at completed_at status background model previous_response_id usage incomplete_details "
    "max_output_tokens max_tool_calls parallel_tool_calls temperature top_p presence_penalty frequency_penalty "
    "top_logprobs truncation service_tier".split()
)
NOT_SHOWN = "Its text belongs to the content, which your permissions do not include."


def shape_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a response's object without its content: no output, no instructions, no metadata, tools by their types."""
    shape = {name: value for name, value in body.items() if name in _STAYS}
    if isinstance(error := body.get("error"), dict):
        shape["error"] = {"code": error.get("code"), "message": NOT_SHOWN}
    if isinstance(reasoning := body.get("reasoning"), dict):
        shape["reasoning"] = {"effort": reasoning.get("effort")}
    if isinstance(tools := body.get("tools"), list):
        shape["tools"] = [{"type": tool.get("type")} for tool in tools if isinstance(tool, dict)]
    return {**shape, "output": []}


def unnamed(timeline: Timeline) -> Timeline:
    """Return a timeline that does not name tools: clients and models choose the names of functions."""
    return replace(timeline, phases=[replace(phase, name="") for phase in timeline.phases])
