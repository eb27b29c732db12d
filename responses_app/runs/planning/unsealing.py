"""`Unsealing`: opens what clients carry for this server: compactions, and the tokens of reasoning items."""

import logging
from collections.abc import Mapping

from responses_app.protocol.errors import invalid_encrypted_content
from responses_app.protocol.items import compaction
from responses_app.protocol.items.compaction import Compacted
from responses_app.protocol.items.items import (
    Compaction,
    InputItem,
    OpenedCompaction,
    Reasoning,
    SampledInput,
    TextPart,
)
from responses_app.protocol.prompt import sealed_items
from responses_app.protocol.prompt.prompt import Items
from responses_app.protocol.prompt.sealed_items import SealedOthers, read_seal, with_exact_tokens
from responses_app.protocol.sealing import SealBroken, Sealer

logger = logging.getLogger("respsite.runs")

UNREADABLE_THOUGHT = "[what you thought here is left out: its seal is broken]"


def is_sealed(items: Items) -> bool:
    """Whether any of these items has something to open."""
    return any(
        isinstance(item, Compaction) or (isinstance(item, Reasoning) and bool(item.encrypted_content))
        for item in items.parsed
    )


class Unsealing:
    """Opens the seals of one request's items, for their `project`."""

    def __init__(self, sealer: Sealer, project: str) -> None:
        self._open = sealer.open
        self._project = project

    def opened(self, items: Items, *, named: bool) -> Items:
        """Return items as the model is to read them.

        Raises `ApiError` for a broken seal in a request, whose items are `named` in errors. A conversation keeps what
        it was given: there the model reads what can be read of such an item, or else a note.
        """
        parsed = list(items.parsed)
        others: dict[int, SealedOthers] = {}
        for place, item in enumerate(parsed):
            at = f"input[{place}].encrypted_content" if named else None
            if isinstance(item, Compaction):
                parsed[place] = self._compaction(item, at)
            elif isinstance(item, Reasoning) and item.encrypted_content:
                parsed[place], told = self._reasoning(item, item.encrypted_content, at)
                if told is not None:
                    others[place] = told
        return Items(_told(parsed, items, others) if others else parsed, items.raw)

    def _compaction(self, item: Compaction, at: str | None) -> InputItem:
        try:
            data = self._open(compaction.PURPOSE, self._project, item.encrypted_content)
            return OpenedCompaction(Compacted.from_bytes(data), item.id)
        except SealBroken as problem:
            if at is not None:
                raise invalid_encrypted_content(item.encrypted_content, at, instead="leave the item out") from problem
            logger.warning("compaction %s of a conversation cannot be read: %s", item.id, problem)
            return item

    def _reasoning(self, item: Reasoning, sealed: str, at: str | None) -> tuple[InputItem, SealedOthers | None]:
        try:
            told = read_seal(self._open(sealed_items.PURPOSE, self._project, sealed))
        except SealBroken as problem:
            if at is not None:
                raise invalid_encrypted_content(
                    sealed, at, instead="leave 'encrypted_content' out: then the item's text is read"
                ) from problem
            logger.warning("the seal of %s in a conversation cannot be read: %s", item.id, problem)
            visible = item.content or item.summary or [TextPart(type="reasoning_text", text=UNREADABLE_THOUGHT)]
            return item.model_copy(update={"content": visible}), None
        if isinstance(told, SealedOthers):
            return item, told
        return told.opened(item), None


def _told(parsed: list[InputItem], items: Items, others: Mapping[int, SealedOthers]) -> list[InputItem]:
    """Return items with what the seals of others tell of them; what a seal of its own says is edited stays so."""
    for place, exact in with_exact_tokens(items.raw, others):
        item = parsed[place]
        if isinstance(item, Reasoning) and item.encrypted_content and item.exact is None:
            continue
        if isinstance(item, SampledInput):
            parsed[place] = item.with_exact(exact)
    return parsed
