"""What a request continues, in its model's own format: a conversation may have begun with a model of another one.

Token ids of one vocabulary mean other text in another. So a message of another format is told (`Told`: who says what to
whom), and rendered anew; its tokens are used no more. The same message gives the same tokens each time, so what follows
finds its own prompt in the engine's cache. What is already in the model's own format stays as it was sampled.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import is_

from engine.formats.base import MessageKind, ModelFormat, RenderedMessage
from responses_app.protocol.errors import invalid_request
from responses_app.protocol.items.items import Exact, InputItem, OpenedCompaction, SampledInput, SampledItem
from responses_app.protocol.prompt.chain import ChainLink, rewritten
from responses_app.protocol.prompt.prompt import Items
from responses_app.runs.plan.served import Tell
from responses_app.runs.planning.history import Context

_OF_THE_MODEL = (MessageKind.ANALYSIS, MessageKind.COMMENTARY, MessageKind.FINAL)


class _Unreadable(ValueError):
    """Nobody can read a message."""


class _Rewrite:
    """Messages of any format → those of one. Raises `_Unreadable`."""

    def __init__(self, model_format: ModelFormat, told: Tell) -> None:
        self._format = model_format
        self._told = told

    @property
    def name(self) -> str:
        """The format's."""
        return self._format.name

    def is_own(self, message: RenderedMessage) -> bool:
        """Whether a message stays as it is."""
        return not message.tokens or self._format.wrote(message.tokens[0])

    def __call__(self, message: RenderedMessage) -> Sequence[RenderedMessage]:
        """Return a message as this format writes it."""
        if self.is_own(message):
            return [message]
        told = self._told(message)
        if told is None:
            raise _Unreadable
        made = [self._format.told(each) for each in told]
        # What stands for no message of the user keeps its kind; whether a thought is dropped later is the format's.
        return made if message.kind in _OF_THE_MODEL else [replace(each, kind=message.kind) for each in made]


def is_foreign(parent: ChainLink | None, model_format: ModelFormat) -> bool:
    """Whether a chain has a message of another format."""
    links = parent.lineage() if parent is not None else ()
    return not all(model_format.wrote(token) for token in {token for link in links for token in link.own.beginnings()})


def in_format(context: Context, model_format: ModelFormat, told: Tell) -> Context:
    """Return what a request continues with all its messages in one format. Raises `ApiError` where that fails."""
    rewrite = _Rewrite(model_format, told)
    try:
        return replace(
            context,
            parent=_chain(context.parent, rewrite) if is_foreign(context.parent, model_format) else context.parent,
            before=_items(context.before, rewrite),
            own=_items(context.own, rewrite),
            sampled=_sampled(context.sampled, rewrite),
        )
    except _Unreadable:
        raise invalid_request(
            "The conversation before this request was with a model that is written to in another format, and cannot be "
            "read here. Send the conversation as items of 'input'.",
            param="model",
            code="invalid_value",
        ) from None


def _chain(link: ChainLink | None, rewrite: _Rewrite) -> ChainLink | None:
    """Return a chain whose links have the same messages in one format."""
    made: ChainLink | None = None
    for each in reversed(list(link.lineage() if link is not None else ())):
        made = rewritten(each, parent=made, rewrite=rewrite)
    return made


def _items(items: Items, rewrite: _Rewrite) -> Items:
    """Return items of which those that a seal tells of, and compactions, have their messages in one format."""
    parsed = [_item(item, rewrite) for item in items.parsed]
    return items if all(map(is_, parsed, items.parsed)) else Items(parsed, items.raw)


def _item(item: InputItem, rewrite: _Rewrite) -> InputItem:
    if isinstance(item, OpenedCompaction) and not all(map(rewrite.is_own, item.compacted.kept)):
        kept = [made for message in item.compacted.kept for made in rewrite(message)]
        return replace(item, compacted=replace(item.compacted, kept=kept))
    if not isinstance(item, SampledInput) or item.exact is None or all(map(rewrite.is_own, item.exact.messages)):
        return item
    try:
        made = [made for message in item.exact.messages for made in rewrite(message)]
        return item.with_exact(Exact(rewrite.name, made))
    except _Unreadable:
        return item  # it is of a format by another name, and so is read as what is seen of it


def _sampled(sampled: Mapping[str, SampledItem], rewrite: _Rewrite) -> Mapping[str, SampledItem]:
    """Return what is known of items; what is not one message in this format is rendered from its item."""
    if all(rewrite.is_own(known.message) for known in sampled.values()):
        return sampled
    made: dict[str, SampledItem] = {}
    for name, known in sampled.items():
        with suppress(ValueError):
            [message] = rewrite(known.message)
            made[name] = replace(known, message=message)
    return made
