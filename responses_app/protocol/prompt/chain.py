"""A chain: responses that continue each other, each a link with the tokens it was rendered to or sampled as.

A link is immutable and knows only its parent. So forks share everything before them, and nothing is copied per turn. A
continuation renders its new items only; the prompt is the tokens of all links, concatenated. That is why a chain goes
on with exactly the tokens that were sampled: they are never turned into text and back.

The rule for old reasoning: the model's reasoning ("analysis") stays in the prompt while a tool loop goes on, and is
dropped once a user message follows a final answer. We say that this user message *settles* what came before. So a link
has two forms: `own`, with its analysis, and `settled`, without. Which one counts is decided by what comes later:

    prompt of a chain = for each link, from the last to the first:
        own       as long as no later link settles
        settled   for all links before one that settles

Two forms are enough because settling cannot be undone: whatever follows, the messages before a user message that
settles never get their analysis back. And because the walk starts at the end, a fork decides for itself: the same link
counts as `own` in one branch and as `settled` in another.

Example. Four responses, with the tokens of each message (u user, a analysis, c call, o tool output, f final answer):

    link                        own   settled   settles   ends_final
    1  u10 a30 c15               55        25   no        no
    2  o12 a20 f25               57        37   no        yes
    3  u8 a40 f5                 53        13   yes       yes           u8 follows f25
    4  u9 a10 f6                 25        15   yes       yes           u9 follows f5

    the whole chain up to 2:  55 + 57            = 112    the loop's analysis is all there
    the whole chain up to 3:  25 + 37 + 53       = 115    3 settled 1 and 2
    the whole chain up to 4:  25 + 37 + 13 + 25  = 100    and 4 settled 3

A user message may also settle inside a link, where a client sends `[…, answer, question]` at once. `new_link` drops the
analysis before it then, so that `own` never holds analysis which was settled already.

As long as nothing settles, a prompt begins with the whole prompt before it and all that was sampled since, which is
what an engine's prefix cache finds. The turn that settles shares the tokens up to the first analysis it drops.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, takewhile

from engine.formats.base import MessageKind, RenderedMessage, Tokens, as_tokens
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.ids import PublicId
from responses_app.protocol.items.calls import lines_called, names_called, no_call, open_calls, written_calls
from responses_app.protocol.items.client_tools import late_tools
from responses_app.protocol.items.offers import calls_of_programs, kept_of_programs
from responses_app.protocol.pictures import StoredPicture

_ANALYSIS = MessageKind.ANALYSIS.value
KEPT_ITEMS = ("mcp_list_tools", "mcp_approval_request", "mcp_approval_response")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTokens:
    """The messages of a link as tokens; what a store keeps of it."""

    kinds: str  # one `MessageKind` value a message
    lengths: Sequence[int]  # how many tokens each message has
    tokens: "Tokens[int]"
    settles: bool  # a user message in here follows a final answer: analysis before that counts no more
    ends_final: bool  # the assistant's last message so far is a final answer

    def messages(self) -> "Iterator[tuple[str, Tokens[int]]]":
        """Yield kind and tokens of each message."""
        start = 0
        for kind, length in zip(self.kinds, self.lengths, strict=True):
            yield kind, self.tokens[start : start + length]
            start += length

    def beginnings(self) -> Iterable[int]:
        """Yield the first token of each message, which tells its format."""
        return (
            self.tokens[start]
            for start, length in zip(accumulate(self.lengths, initial=0), self.lengths, strict=False)
            if length
        )

    def settled(self) -> "LinkTokens":
        """Return it without analysis: what counts of it once something later has settled it."""
        if _ANALYSIS not in self.kinds:
            return self
        kept = as_tokens()
        start = end = 0  # of the run of messages that are kept; a run is copied at once, a message at a time is slow
        for kind, length in zip(self.kinds, self.lengths, strict=True):
            if kind == _ANALYSIS:
                kept.extend(self.tokens[start:end])
                start = end + length
            end += length
        kept.extend(self.tokens[start:end])
        lengths = [length for kind, length in zip(self.kinds, self.lengths, strict=True) if kind != _ANALYSIS]
        return replace(self, kinds=self.kinds.replace(_ANALYSIS, ""), lengths=lengths, tokens=kept)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # a link is itself: comparing would recurse
class ChainLink:
    """One response's part of a chain: its input and what was sampled. Or several parts, which a store reads at once."""

    response_id: str
    parent: "ChainLink | None" = field(repr=False)
    root_id: str  # the chain's first response
    # The date (ISO 8601) of the chain's system message. It stays, or the prefix cache would be lost at midnight.
    started_on: str
    own: LinkTokens
    settled: "Tokens[int]"  # its own tokens without analysis, as they count once something later has settled them
    calls: Mapping[str, str]  # in here: call_id → what the model called (`names_called`)
    total_bytes: int  # an estimate of the memory of this link and all before it
    awaited: Mapping[str, str] = field(default_factory=dict)  # calls to be answered next, with their items' types
    # What they called and with what, as their items have it; a store has it in the response that made them.
    waiting: Mapping[str, JsonObject] = field(default_factory=dict)
    late_tools: Sequence[JsonObject] = ()  # the tools that its items declare
    tool_items: Sequence[JsonObject] = ()  # what later responses need of this server's tools: see `KEPT_ITEMS`
    states: Mapping[str, JsonObject] = field(default_factory=dict)  # what the tools themselves want to know later
    stored: bool = False  # so whether it can (still) be continued is the store's to say
    public: PublicId | None = None  # what clients call the response, where that is not its own id
    continues: str | None = None  # what the response says that it continues, where it has a public id
    # That its messages show and only this process knows: of a response that is not stored. Others are in the store.
    pictures: Sequence[StoredPicture] = ()

    @property
    def known_as(self) -> str:
        """The id by which clients know the response."""
        return self.public.name if self.public else self.response_id

    def lineage(self) -> "Iterator[ChainLink]":
        """Yield this link, its parent, and so on to the first."""
        link: ChainLink | None = self
        while link is not None:
            yield link
            link = link.parent

    def unstored(self) -> "Iterator[ChainLink]":
        """Yield this link, its parent, and so on to the first one of a response that is stored, without that one.

        What the links behind it show is in the store, too: a stored response keeps what it continues.
        """
        return takewhile(lambda link: not link.stored, self.lineage())

    def _oldest_first(self) -> "Iterator[ChainLink]":
        return reversed(list(self.lineage()))

    def prompt_tokens(self) -> "Tokens[int]":
        """Return the tokens of the whole chain as they are fed to the model, system and developer messages apart."""
        parts: list[Tokens[int]] = []
        settled = False
        link: ChainLink | None = self
        while link is not None:  # not `lineage`, which would take longer than the rest for each of a thousand links
            parts.append(link.settled if settled else link.own.tokens)
            settled = settled or link.own.settles
            link = link.parent
        return _join(reversed(parts))

    def all_late_tools(self) -> list[JsonObject]:
        """Return the tools that the whole chain's items declare, the latest last."""
        return [tool for link in self._oldest_first() for tool in link.late_tools]

    def all_tool_items(self) -> list[JsonObject]:
        """Return the items of the whole chain that this server's tools need, the latest last."""
        return [item for link in self._oldest_first() for item in link.tool_items]

    def all_states(self) -> dict[str, JsonObject]:
        """Return what tools have left in the chain, the latest of each."""
        states: dict[str, JsonObject] = {}
        for link in self._oldest_first():
            states |= link.states
        return states

    def has_call(self, call_id: str) -> bool:
        """Whether this chain has a call."""
        return bool(self.call_names(call_id))

    def call_names(self, call_id: str) -> Sequence[str]:
        """Return the names of the functions that `call_id` called in this chain: several where calls share the id."""
        return [name for name, _ in self.calls_named(call_id)]

    def calls_named(self, call_id: str) -> Sequence[tuple[str, str]]:
        """Return the names that `call_id` called, each with the type of its call's item; "": any."""
        return next((lines_called(link.calls[call_id]) for link in self.lineage() if call_id in link.calls), ())


def new_link(
    parent: ChainLink | None,
    *,
    response_id: str,
    started_on: str,
    messages: Sequence[RenderedMessage],
    items: Sequence[JsonObject] = (),
    in_background: Collection[str] = (),
) -> ChainLink:
    """Make a link after `parent`; `started_on` counts for the first link only. `items` are its input and output.

    Calls of the names `in_background` need no output.
    """
    own = _own(parent, messages)
    link = link_of(
        parent,
        response_id=response_id,
        started_on=parent.started_on if parent else started_on,
        own=own,
        calls=names_called(items),
    )
    known = parent.awaited if parent else {}
    if not (items or known):  # the link of a request's own input
        return link
    awaited = open_calls(items, known=known, made=parent.has_call if parent else no_call, in_background=in_background)
    declared, tool_items = late_tools(items), [*kept_items(items), *kept_of_programs(items, calls_before(parent))]
    if not (awaited or declared or tool_items):
        return link
    written = {**(parent.waiting if parent else {}), **written_calls(items)}
    waiting = {call_id: written[call_id] for call_id in awaited if call_id in written}
    link = replace(link, awaited=awaited, waiting=waiting, late_tools=declared, tool_items=tool_items)
    return _larger(link, [*tool_items, *waiting.values()])


def calls_before(parent: ChainLink | None) -> set[str]:
    """Return the ids of the calls that paused programs of a chain have made."""
    # Most chains wait for nothing, and are not walked.
    return calls_of_programs(parent.all_tool_items()) if parent and parent.awaited else set()


def rewritten(
    link: ChainLink, *, parent: ChainLink | None, rewrite: Callable[[RenderedMessage], Sequence[RenderedMessage]]
) -> ChainLink:
    """Return a link behind `parent` with other tokens for its messages; in all else it is what it was."""
    messages = [RenderedMessage(MessageKind(kind), tokens) for kind, tokens in link.own.messages()]
    own = _own(parent, [new for message in messages for new in rewrite(message)])
    settled = own.settled().tokens
    grown = 4 * (len(own.tokens) + len(settled) - len(link.own.tokens) - len(link.settled))
    before = link.parent.total_bytes if link.parent else 0
    size = max(link.total_bytes - before + grown, _SIZE_OF_LINK) + (parent.total_bytes if parent else 0)
    return replace(link, parent=parent, own=own, settled=settled, total_bytes=size)


def _own(parent: ChainLink | None, messages: Sequence[RenderedMessage]) -> LinkTokens:
    """Return messages after `parent` as a link has them."""
    # Tool outputs and developer messages change nothing of `ends_final`: it is about what the model said last.
    ends_final = parent.own.ends_final if parent else False
    settled_before: int | None = None  # messages before this index have lost their analysis for good
    for index, message in enumerate(messages):
        match message.kind:
            case MessageKind.USER if ends_final:
                settled_before = index
            case MessageKind.FINAL | MessageKind.ANALYSIS | MessageKind.COMMENTARY:
                ends_final = message.kind is MessageKind.FINAL
    kept = [m for i, m in enumerate(messages) if i >= (settled_before or 0) or m.kind is not MessageKind.ANALYSIS]
    return LinkTokens(
        kinds="".join(message.kind.value for message in kept),
        lengths=[len(message.tokens) for message in kept],
        tokens=_join(message.tokens for message in kept),
        settles=settled_before is not None,
        ends_final=ends_final,
    )


def with_states(link: ChainLink, states: Mapping[str, JsonObject]) -> ChainLink:
    """Return a link with what tools of this server want to know later."""
    return _larger(replace(link, states=states), list(states.values())) if states else link


def with_pictures(link: ChainLink, pictures: Sequence[StoredPicture]) -> ChainLink:
    """Return a link that holds pictures, which its tokens name."""
    size = sum(len(each.content) for each in pictures)
    return replace(link, pictures=pictures, total_bytes=link.total_bytes + size) if pictures else link


def _larger(link: ChainLink, values: Sequence[JsonObject]) -> ChainLink:
    return replace(link, total_bytes=link.total_bytes + sum(len(repr(each)) for each in values))


def kept_items(items: Iterable[JsonObject]) -> list[JsonObject]:
    """Return what later responses need of items: lists of tools, requests for approval and that one was used, and
    which images were made, by their ids.
    """
    kept: list[JsonObject] = []
    for item in items:
        kind, item_id = item.get("type"), item.get("id")
        if kind in KEPT_ITEMS:
            kept.append(item)
        elif kind == "mcp_call" and item.get("approval_request_id"):
            kept.append({"type": "mcp_call", "approval_request_id": item["approval_request_id"]})
        elif kind == "image_generation_call" and item.get("status") != "failed" and isinstance(item_id, str):
            kept.append({"type": "image_generation_call", "id": item_id})
    return kept


def link_of(
    parent: ChainLink | None,
    *,
    response_id: str,
    started_on: str,
    own: LinkTokens,
    calls: Mapping[str, str],
    root_id: str | None = None,
) -> ChainLink:
    """Make a link of tokens that are in order already; `root_id` is for a first link that holds several parts.

    Parts that continue each other are as good as one that holds their messages and calls, as long as none but the
    first settles what came before: what an earlier one had to settle is told by `LinkTokens.settled`.
    """
    settled = own.settled().tokens
    copied = 0 if settled is own.tokens else len(settled)
    size = 4 * (len(own.tokens) + copied) + 2 * 128 * len(calls) + _SIZE_OF_LINK
    return ChainLink(
        response_id=response_id,
        parent=parent,
        root_id=parent.root_id if parent else root_id or response_id,
        started_on=started_on,
        own=own,
        settled=settled,
        calls=calls,
        total_bytes=size + (parent.total_bytes if parent else 0),
    )


def drop_oldest(link: ChainLink, limit: int) -> "Tokens[int]":
    """Return the chain's tokens without its oldest messages, so that at most `limit` remain (`truncation: auto`).

    What remains begins with a user message where there is one, else with what the model said, so that no tool output
    loses its call; the last message always remains, however long.
    """
    messages: list[tuple[str, Tokens[int]]] = []  # of the whole chain, as `prompt_tokens` has them
    settled = False
    for part in link.lineage():
        messages[:0] = [m for m in part.own.messages() if not settled or m[0] != _ANALYSIS]
        settled = settled or part.own.settles
    total = sum(len(tokens) for _, tokens in messages)
    start = 0
    while start < len(messages) - 1 and total > limit:
        total -= len(messages[start][1])
        start += 1
    kinds = "".join(kind for kind, _ in messages)
    if start:
        # Outputs at the beginning would answer calls that were dropped. A user message is the best beginning; where
        # none is left, the first message that is neither a tool's output nor a developer's.
        first_said = len(kinds) - len(kinds[start:].lstrip(MessageKind.OTHER.value))
        beginnings = (kinds.find(MessageKind.USER.value, start), first_said)
        start = next(index for index in (*beginnings, len(kinds) - 1) if 0 <= index < len(kinds))
    return _join(tokens for _, tokens in messages[start:])


_SIZE_OF_LINK = 512  # the objects of a link, beside its tokens


def _join(parts: "Iterable[Tokens[int]]") -> "Tokens[int]":
    joined = as_tokens()
    joined.frombytes(b"".join(parts))  # a copy more, and a third of the time of extending by each part
    return joined
