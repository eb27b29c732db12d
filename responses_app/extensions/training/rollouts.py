"""`/v1/rollouts`: roll-outs, their trees, and rewards. Times are Unix seconds, those of generations milliseconds."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Literal

from django.http import HttpResponse
from typing_extensions import TypedDict

from engine import orjson
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import invalid_value
from responses_app.protocol.requests.pages import page_of, parse_list_query
from responses_app.protocol.rollouts.generations import Generation
from responses_app.protocol.rollouts.requests import (
    NewReward,
    NewRollout,
    RolloutObject,
    RolloutTreeObject,
    parse_reward,
    parse_rollout,
    rollout_too_large,
)
from responses_app.protocol.rollouts.tree import MAX_NUMBERS, Masks, tree_of
from responses_app.web.endpoint import JSON, PAGED, Endpoint, Parameter, text
from responses_app.web.http import ApiRequest, json_bytes, read_json
from responses_app.wiring.site import get_site


class RolloutList(TypedDict):
    """A part of a list of roll-outs. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[RolloutObject]
    first_id: str
    last_id: str
    has_more: bool


class DeletedRollout(TypedDict):
    """A roll-out is gone, with all its tokens."""

    id: str
    object: Literal["rollout.deleted"]
    deleted: Literal[True]


_making = asyncio.Semaphore(2)  # trees that one worker makes at once: each may be large


async def _create(request: ApiRequest) -> RolloutObject:
    new = await read_json(request, parse_rollout, get_site().reader)
    rollouts = get_site().rollouts
    return rollouts.shown(await rollouts.create(request.project, new))


async def _list(request: ApiRequest) -> RolloutList:
    query = request.query
    page = parse_list_query(query)
    group, rollouts = query.get("group"), get_site().rollouts
    rows = await rollouts.listed(
        request.project,
        after=page.after,
        limit=page.limit + 1,
        descending=page.descending,
        group=group[-1] if group else None,
    )
    return page_of(rows, page, rollouts.shown)


async def _get(request: ApiRequest, rollout_id: str) -> HttpResponse:
    """Return a roll-out: with its tree, or its head alone."""
    query, rollouts, project = request.query, get_site().rollouts, request.project
    with_tree = _choice(query.get("tree"), "tree", ("true", "false"))
    sequences = _choice(query.get("sequences"), "sequences", ("true", "false")) == "true"
    masks = _choice(query.get("masks"), "masks", ("first", "all"))
    record = await rollouts.get(project, rollout_id)
    head = rollouts.shown(record)
    if with_tree == "false":
        return json_bytes(orjson.dumps(head))
    if record.prompt_tokens + record.sampled_tokens > MAX_NUMBERS:  # before they are read
        raise rollout_too_large(MAX_NUMBERS, sequences=False)
    async with _making:
        generations = await rollouts.generations(record)
        made = await asyncio.to_thread(_tree, head, generations, "all" if masks == "all" else "first", sequences)
    return json_bytes(made)


def _tree(head: RolloutObject, generations: Sequence[Generation], masks: Masks, sequences: bool) -> bytes:
    """Return the tree as JSON. Raises `ApiError` where that would be too large."""
    tree = tree_of(head, generations, masks=masks, format_of=get_site().service.models.format_of)
    if tree.numbers(sequences=sequences) > MAX_NUMBERS:
        raise rollout_too_large(MAX_NUMBERS, sequences=sequences)
    return orjson.dumps(tree.as_json(sequences=sequences))


def _choice(values: Sequence[str] | None, name: str, choices: tuple[str, str]) -> str:
    value = values[-1] if values else choices[0]
    if value not in choices:
        raise invalid_value(name, f"{value[:80]!r}. Supported values are: '{choices[0]}' and '{choices[1]}'.")
    return value


async def _reward(request: ApiRequest, rollout_id: str) -> RolloutObject:
    rollouts, project = get_site().rollouts, request.project
    await rollouts.get(project, rollout_id)  # before the body is judged: what is another project's does not exist
    reward = await read_json(request, parse_reward, get_site().reader)
    return rollouts.shown(await rollouts.reward(project, rollout_id, reward))


async def _end(request: ApiRequest, rollout_id: str) -> RolloutObject:
    rollouts = get_site().rollouts
    return rollouts.shown(await rollouts.end(request.project, rollout_id))


async def _delete(request: ApiRequest, rollout_id: str) -> DeletedRollout:
    await get_site().rollouts.delete(request.project, rollout_id)
    return {"id": rollout_id, "object": "rollout.deleted", "deleted": True}


_ROLLOUTS = "/v1/rollouts"
_ROLLOUT = f"{_ROLLOUTS}/{{rollout_id}}"
_GROUP = Parameter("group", "The group of the roll-outs; all, where it is left out.", text())
_WITH_TREE = Parameter("tree", "Whether the answer has the tree.", text(enum=["true", "false"], default="true"))
_SEQUENCES = Parameter(
    "sequences",
    "Whether the tree has the sequences; many forks of a long prompt are shorter without.",
    text(enum=["true", "false"], default="true"),
)
_MASKS = Parameter(
    "masks",
    "Where a sampled token has the mask 1: in the first sequence that has it, or in all.",
    text(enum=["first", "all"], default="first"),
)
_endpoint = partial(Endpoint, tag="Rollouts", scope=Area.ROLLOUTS)

_KEPT = ("A roll-out keeps the tokens of all that runs in it", "Use another project.")

ENDPOINTS: Sequence[Endpoint] = (
    _endpoint(
        "POST",
        _ROLLOUTS,
        _create,
        "createRollout",
        "Create a roll-out",
        body=NewRollout,
        errors=(409, 429),
        keeps=_KEPT,
    ),
    _endpoint("GET", _ROLLOUTS, _list, "listRollouts", "List the roll-outs", takes=(*PAGED, _GROUP)),
    _endpoint(
        "GET",
        _ROLLOUT,
        _get,
        "getRollout",
        "Return a roll-out, with the tree of its tokens",
        takes=(_WITH_TREE, _SEQUENCES, _MASKS),
        answers={JSON: RolloutTreeObject},
    ),
    _endpoint("DELETE", _ROLLOUT, _delete, "deleteRollout", "Delete a roll-out, with all its tokens"),
    _endpoint("POST", f"{_ROLLOUT}/reward", _reward, "rewardRollout", "Add a reward", body=NewReward, errors=(409,)),
    _endpoint("POST", f"{_ROLLOUT}/end", _end, "endRollout", "End a roll-out: it takes no more requests"),
)
