"""`GivenOutputs`: what clients say came of calls goes to the run that waits for it, here or on another worker.

An output that was accepted is kept: the worker that runs the response answers once the output is in its log, and
whoever goes on with the response has it from there.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.formats.base import PicturePart
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import ApiError, JsonObject, response_not_found
from responses_app.protocol.items.calls import body_and_omissions
from responses_app.protocol.items.media import images_in_output
from responses_app.protocol.pictures import PictureUnreadable
from responses_app.protocol.requests.resources import RUNNING
from responses_app.protocol.response.steps import OutputGiven
from responses_app.protocol.session.tool_outputs import as_json, from_json, not_waiting
from responses_app.runs.driving.run import Run
from responses_app.runs.log.following import OtherWorkers
from responses_app.runs.log.journal import EventSource
from responses_app.runs.plan.failures import (
    invalid_image,
    not_answered,
    out_of_reach,
    store_away,
    store_errors,
    too_many_images,
)
from responses_app.runs.registry.registry import RunRegistry
from responses_app.stores.base import BaseResponseStore

logger = logging.getLogger("respsite.runs")

# Fields of `ApiError` that cross to the worker that was asked
_ERROR = ("message", "status", "type", "code", "param", "retry_after")


class GivenOutputs:
    """Takes the outputs of calls that clients give, to the run that waits for them. There is one in a process."""

    def __init__(
        self, store: BaseResponseStore, registry: RunRegistry, *, others: OtherWorkers, images_max: int
    ) -> None:
        """Take at most `images_max` images of an output."""
        self._store = store
        self._registry = registry
        self._others = others
        self._images_max = images_max

    async def give(self, project: str, response_id: str, output: OutputGiven) -> None:
        """Give an output to the response that waits for it; it is kept when this returns.

        Raises `ApiError`: 404 for an unknown response or call, 409 where nobody waits for it (any more), 503 where the
        worker that runs the response cannot be reached, or cannot keep it.
        """
        run = self._run(project, response_id)
        if run is not None and not run.journal.closed:
            await self._take(run, output)
            return
        # Nothing here: the store tells whether it has ended, runs elsewhere, or is known to no store.
        with store_errors():
            stored = await self._store.response(project, response_id)
            if stored is None and (leg := await self._store.newest_leg(project, response_id)) is not None:
                stored = await self._store.response(project, leg.response_id)
        if stored is not None and stored["status"] not in RUNNING:
            raise not_waiting(response_id)
        await self._give_elsewhere(project, response_id, output, is_stored=stored is not None)

    async def inject(self, source: EventSource, outputs: Sequence[OutputGiven]) -> None:
        """Give outputs to a response that runs here: all of them, or none; they are kept when this returns.

        Raises `ApiError` as `give` does.
        """
        if not isinstance(source, Run) or source.lost or source.given_back:
            raise not_waiting(source.response_id)
        with store_errors():
            seen = [await _seen(source, output, self._images_max) for output in outputs]
        source.take_outputs(seen, at="input[{}].call_id")
        await _kept(source)

    async def take_here(self, output: Mapping[str, object]) -> JsonObject | None:
        """Take what another worker was given; return what came of that, None where the response does not run here."""
        run = self._run(str(output["project"]), str(output["response_id"]))
        if run is None:
            return None
        try:
            await self._take(run, from_json(output))
        except ApiError as error:
            return {"error": {name: getattr(error, name) for name in _ERROR}}
        return {}

    def _run(self, project: str, response_id: str) -> Run | None:
        """Return a response that runs here, or has just ended; None for one that another worker goes on with.

        Also one that is not stored, which other doors do not find by its id.
        """
        run = self._registry.find(project, response_id) or self._registry.named(project, response_id)
        gone = run is None or run.lost or run.given_back or self._registry.is_forgotten(run)
        return None if gone else run

    async def _give_elsewhere(self, project: str, response_id: str, output: OutputGiven, *, is_stored: bool) -> None:
        """Give it to whichever worker runs the response. One that is not stored is known to that worker alone."""
        answer = None
        if self._others.reaches_others:
            answer = await self._others.ask_to_take({"project": project, "response_id": response_id, **as_json(output)})
        elif is_stored:
            raise out_of_reach()
        if answer is None:
            if not is_stored:
                raise response_not_found(response_id)
            raise not_answered()
        error = answer.get("error")
        if isinstance(error, dict):
            raise ApiError(str(error["message"]), **{name: error[name] for name in _ERROR[1:]})

    async def _take(self, run: Run, output: OutputGiven) -> None:
        refused: ApiError | None = None
        with store_errors():
            output = await _seen(run, output, self._images_max)
        try:
            run.take_outputs([output])
        except ApiError as error:
            # 409: the output is there, or the response has ended.
            if error.status != 409:
                raise
            refused = error  # it says that the output is there already: that is to hold, too
        await _kept(run)
        if refused is not None:
            raise refused


async def _kept(run: Run) -> None:
    """Return once what a run was given is kept. Raises `ApiError` (503)."""
    try:
        await run.keep_inputs()
    except StoreError as problem:
        logger.error("response %s: an output of a tool is not kept yet: %s", run.response_id, problem)
        raise store_away(problem) from problem


async def _seen(run: Run, output: OutputGiven, images_max: int) -> OutputGiven:
    """Return an output with its images as pictures, where the model sees. Raises `ApiError` for one that is wrong."""
    plan = run.plan
    if isinstance(output.output, str) or not plan.format.sees:
        return output
    sources = list(images_in_output(output.output))
    if len(sources) > images_max:
        raise too_many_images(f"output{sources[images_max].path}", len(sources), images_max)
    digests: dict[int, PicturePart] = {}
    for source in sources:
        try:
            digest = await plan.pictures.show(source, owner=plan.response_id, stored=plan.stored)
        except PictureUnreadable as problem:
            raise invalid_image(f"output{source.path}", problem) from None
        digests[source.key] = PicturePart(digest)
    if not digests:
        return output
    body, _ = body_and_omissions([digests.get(id(part), part) for part in output.output])
    return output if isinstance(body, str) else replace(output, seen=tuple(body))
