"""`CompletionService`: starts completions of raw prompts: no conversation, no items, nothing that is kept.

    create() ──> Completing (`completing`), whose choices have their places at the engine and in the limits

All that can be known before anything is generated is known here, and refused. To read prompts as tokens blocks for as
long as they are long, or an engine tokenizes them: long ones are read on a thread.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from engine.errors import EngineError, NotRendered
from engine.formats.base import as_tokens
from engine.types import GenerationRequest
from responses_app import __version__
from responses_app.observing import gen_ai
from responses_app.observing.traces import Value
from responses_app.protocol import ids
from responses_app.protocol.engine_details import EngineDetails
from responses_app.protocol.errors import ApiError, context_length_exceeded, invalid_request, unsupported_parameter
from responses_app.protocol.prompt.prompt import check_can_fit
from responses_app.protocol.rate_limits import Amount, Slot
from responses_app.protocol.rollouts.recording import CompletionRecorder
from responses_app.protocol.stateless.completions import (
    CompletionHead,
    CompletionText,
    CompletionWanted,
    Echo,
    in_completions_names,
)
from responses_app.protocol.tiers import PRIORITIES
from responses_app.runs.driving.spans import operation_span
from responses_app.runs.plan.failures import refusal
from responses_app.runs.plan.plan import Origin, session_of
from responses_app.runs.plan.planning import check_tokens, project_salt, sampling_of
from responses_app.runs.plan.served import ServedModel
from responses_app.runs.plan.turns import FairThreads
from responses_app.runs.rollouts import as_part, part_of, with_sampling
from responses_app.runs.service import ResponseService
from responses_app.runs.stateless.completing import Completing, Deltas, OpenChoice

logger = logging.getLogger("respsite.runs")


def read_prompts(wanted: CompletionWanted, model: ServedModel, max_model_len: int) -> list[tuple[Sequence[int], str]]:
    """Return the tokens of each prompt, and what its completions begin with.

    Raises `ApiError`, and `EngineError` where who tokenizes is away.
    """
    prompts = []
    for prompt in wanted.prompts:
        check_can_fit(len(prompt) if isinstance(prompt, str) else 0, model.format, max_model_len)
        tokens = _tokens(prompt, model)
        if len(tokens) >= max_model_len:
            raise context_length_exceeded(len(tokens), max_model_len)
        prompts.append((tokens, _echo(prompt, tokens, model) if wanted.fields.echo else ""))
    return prompts


def _tokens(prompt: str | Sequence[int], model: ServedModel) -> Sequence[int]:
    if not isinstance(prompt, str):
        check_tokens(prompt, model.format, "prompt")
        return as_tokens(prompt)
    try:
        tokens = model.format.raw_prompt(prompt)
    except NotRendered as error:
        logger.warning("a prompt was not tokenized: %s", error)
        tokens = None
    if tokens is None:
        raise invalid_request(
            "Invalid value for 'prompt': this server cannot turn this text into tokens of this model. Send token ids.",
            param="prompt",
            code="invalid_value",
        )
    return tokens


def _echo(prompt: str | Sequence[int], tokens: Sequence[int], model: ServedModel) -> str:
    if isinstance(prompt, str):
        return prompt
    return b"".join(map(model.format.token_bytes, tokens)).decode(errors="replace")


LONG_PROMPTS = 4096  # characters, or tokens, of a request's prompts; what is longer is read on a thread


@dataclass(slots=True)
class CompletionService:
    """Starts completions, and stops them all at the server's end. What it needs it has in common with `service`."""

    service: ResponseService
    running: set[Completing] = field(default_factory=set)

    async def create(self, wanted: CompletionWanted, origin: Origin) -> Completing:
        """Start what is asked. Raises `ApiError` for all that can be known before."""
        registry, count = self.service.registry, len(wanted.prompts) * wanted.n
        registry.take_places(count)  # at once, or others would take the same places meanwhile
        try:
            return await self._start(wanted, origin)
        except BaseException as error:
            for _ in range(count):
                registry.give_place()
            if isinstance(error, ApiError):
                in_completions_names(error)  # it is the same error
            raise

    async def _start(self, wanted: CompletionWanted, origin: Origin) -> Completing:
        model = self.service.models.chosen(wanted.fields.model, origin.models)
        ref = part_of(origin, wanted.metadata)
        if ref is not None:
            rollout = await self.service.rollouts.enter(origin.project, ref)
            wanted = replace(wanted, fields=with_sampling(wanted.fields, rollout))
            origin = as_part(origin, ref, rollout)
            ref = origin.rollout
        if wanted.fields.logprobs is not None and not model.engine.supports_logprobs:
            raise unsupported_parameter("logprobs", "The engine here gives no log probabilities; leave it out.")
        details = _details(wanted, model)
        tier = self.service.settings.tier(None)
        head = CompletionHead(
            id=self.service.new_id(ids.COMPLETION),
            created=int(self.service.now()),
            model=model.name,
            service_tier=tier,
            system_fingerprint=ids.system_fingerprint(model.name, __version__),
        )
        priority = origin.priority(PRIORITIES[tier])
        choices = await _choices(wanted, model, origin, head.id, priority, self.service.threads)
        details.check_prompts(sum(len(each.request.prompt_token_ids) for each in choices))
        if ref is not None:
            self.service.rollouts.check(origin.weights, model)
            for choice in choices:
                if origin.weights is not None:
                    choice.request = replace(choice.request, weights=origin.weights.version or "")
                choice.recorder = CompletionRecorder(
                    ref,
                    choice.request,
                    now=self.service.now,
                    vocabulary=model.format.vocabulary_name,
                    rule=self.service.rollouts.rule(origin.weights, model),
                )
        places = [model.turns.place(origin.project, tier, priority, of_rollout=ref is not None) for _ in choices]
        try:
            for place in places:
                place.admit()
            # The `n` choices of a prompt follow each other, and their prompt counts once.
            prompt_tokens = sum(len(each.request.prompt_token_ids) for each in choices[:: wanted.n])
            amount = Amount(1, prompt_tokens, max(1, sum(choice.left for choice in choices)))
            ticket = await self.service.rates.admit(origin.limited, amount, Slot.RESPONSE)
        except BaseException:
            for place in places:
                place.leave()
            raise
        deltas = Deltas(max_bytes=self.service.settings.stream_max_lag_bytes)
        completing = Completing(
            head, model, origin, ticket, deltas=deltas, book=self.service.usage, left=self.running.discard
        )
        # From here on each choice gives its own place back.
        completing.keep = self.service.rollouts.keep
        completing.ended_one = self.service.registry.give_place
        completing.usage.prompt_tokens = prompt_tokens
        self.running.add(completing)
        name = wanted.fields.model or model.name
        span = operation_span(origin, gen_ai.TEXT_COMPLETION, name, _asked(wanted))
        completing.start(choices, places, span)
        return completing

    def stop(self) -> None:
        """Stop what has not ended within the registry's grace; its readers are told."""
        # A copy: who ends leaves the set.
        for each in list(self.running):
            each.stop()


def _asked(wanted: CompletionWanted) -> dict[str, Value]:
    """Return what the span of a request has of its own when it begins."""
    known = gen_ai.sampling(wanted.fields)
    if wanted.fields.stream:
        known["gen_ai.request.stream"] = True
    if wanted.n > 1:
        known["gen_ai.request.choice.count"] = wanted.n
    return known


def _details(wanted: CompletionWanted, model: ServedModel) -> EngineDetails:
    """Return what is wanted of the engine's work. Raises `ApiError` for what it does not give."""
    if wanted.echoes_logprobs and not model.engine.supports_prompt_logprobs:
        raise unsupported_parameter(
            "logprobs",
            "Together with 'echo' it asks for those of the prompt, which the engine here does not give. "
            "Leave one of them out.",
        )
    details = EngineDetails(
        wanted_logprobs=wanted.prompt_logprobs, given_transfer=wanted.fields.kv_transfer_params or None
    )
    details.begin(model.engine, model.format)
    return details


async def _choices(
    wanted: CompletionWanted,
    model: ServedModel,
    origin: Origin,
    response_id: str,
    priority: int,
    threads: FairThreads,
) -> list[OpenChoice]:
    """Return all choices, in their order. Raises `ApiError`."""
    try:
        info = await model.ready()
    except EngineError as error:
        raise refusal(error, origin.request_id) from error
    fields, choices = wanted.fields, list[OpenChoice]()
    stop_tokens = tuple(fields.stop_token_ids or ())
    sampling = sampling_of(fields, model.format, top_logprobs=fields.logprobs, prompt_logprobs=wanted.prompt_logprobs)
    read = partial(read_prompts, wanted, model, info.max_model_len)
    size = sum(map(len, wanted.prompts))
    try:
        if model.format.renders_elsewhere:
            prompts = await threads.wait(origin.project, read)
        else:
            prompts = await threads.run(origin.project, size, read) if size > LONG_PROMPTS else read()
    except EngineError as error:
        raise refusal(error, origin.request_id) from error
    for tokens, begin in prompts:
        for place in range(wanted.n):
            request = GenerationRequest(
                request_id=f"{response_id}-{len(choices)}",
                prompt_token_ids=tokens,
                # With a seed, each choice of a prompt has one of its own: else all would say the same.
                sampling=sampling.of_choice(place),
                priority=priority if model.engine.supports_priority else 0,
                cache_salt=project_salt(origin) if model.engine.supports_cache_salt else None,
                session=session_of(origin, root=response_id),
                kin=origin.kin,
                kv_transfer_params=fields.kv_transfer_params or None,
            )
            text = CompletionText(
                len(choices),
                model.format,
                stops=wanted.stops,
                stop_tokens=stop_tokens,
                logprobs=fields.logprobs is not None,
                echo=Echo(begin, tokens if wanted.echoes_logprobs else (), fields.logprobs or 0),
            )
            left = min(info.max_model_len - len(tokens), wanted.max_tokens)
            choices.append(
                OpenChoice(
                    request,
                    text,
                    left,
                    gives_tokens=bool(fields.return_token_ids),
                    gives_logprobs=fields.prompt_logprobs is not None,
                    only_reads=not left and wanted.echoes_logprobs,
                    counts=wanted.counts_each,
                )
            )
    return choices
