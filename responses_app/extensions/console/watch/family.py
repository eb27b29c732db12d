"""What a response goes on from and what goes on from it, as a tree: the chain up to it, its forks, what came behind.

It is bounded on all sides, and says where it stops. Everything in it is of one project.

    resp_1 ─ resp_2 ┬ resp_3 ─ resp_4 (the one that is looked at) ┬ resp_6
                    └ resp_5                                      └ resp_7
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.db import connection

from responses_app.extensions.console.watch.text import visible
from responses_app.models import ChainPart, Response
from responses_app.protocol.items.words import words_of
from responses_app.protocol.requests.resources import CONTINUABLE

MAX_BEFORE = 40  # of the responses that it goes on from
MAX_FORKS = 60  # of those that go on from them beside it
MAX_AFTER = 100  # of those that go on from it
MAX_NESTED = 8  # forks within forks
MAX_YOUNG = 300  # of the newest responses of its chat, which are looked through for those without a part of a chain
MAX_READ = 512 << 10  # bytes of input that are read for the texts, of responses not larger than
MAX_READ_EACH = 64 << 10  # bytes: a larger one shows no text
TEXT = 70  # characters of what was asked

_WITH_PART = {status.value for status in CONTINUABLE}
_PARTS = ChainPart._meta.db_table
# From the response towards the root. Parameters: id, project twice, depth.
_BEFORE = f"""
WITH RECURSIVE before (id, parent_id, depth) AS (
    SELECT id, parent_id, 0 FROM {_PARTS} WHERE id = %s AND project = %s
    UNION ALL
    SELECT part.id, part.parent_id, before.depth + 1 FROM before JOIN {_PARTS} AS part ON part.id = before.parent_id
    WHERE part.project = %s AND before.depth < %s
)
SELECT id, parent_id FROM before ORDER BY depth
"""
# All that goes on from it, in any order. Parameters: id, project twice, depth, rows.
_AFTER = f"""
WITH RECURSIVE after (id, parent_id, depth) AS (
    SELECT id, parent_id, 1 FROM {_PARTS} WHERE parent_id = %s AND project = %s
    UNION ALL
    SELECT part.id, part.parent_id, after.depth + 1 FROM after JOIN {_PARTS} AS part ON part.parent_id = after.id
    WHERE part.project = %s AND after.depth < %s
)
SELECT id, parent_id FROM after LIMIT %s
"""


@dataclass(slots=True)
class ChainNode:
    """A response in the tree."""

    id: str
    status: str = ""
    created_at: datetime | None = None
    tokens: str = ""  # how many it read and said
    asked: str = ""  # the beginning of what it was asked
    is_current: bool = False  # the tree is shown for it
    gone: bool = True  # it was deleted, or its time is over
    more: bool = False  # others go on from it that are not shown
    forks: list["Branch"] = field(default_factory=list)  # go on from it beside the next one of its branch


Branch = list[ChainNode]  # one behind the other


@dataclass(frozen=True, slots=True)
class ChainTree:
    """The tree: its first branch."""

    branch: Branch
    before: str  # the id that its first node goes on from; "" where that is the first
    has_previous: bool  # what the response goes on from is known
    following: Sequence[str]  # those that go on from it and are known, oldest first


def family_of(project: str, response_id: str, *, previous: str, ttl: float = 0.0, has_texts: bool = True) -> ChainTree:
    """Return the tree of a response that goes on from `previous`. `ttl`: how many seconds responses are known, or 0."""
    path, before = _before(project, response_id, previous)
    parents = _Parents(path)
    parts = ChainPart.objects.filter(project=project, parent_id__in=path[:-1]).exclude(pk__in=path).order_by("pk")
    forks = [(pk, str(parent)) for pk, parent in parts.values_list("pk", "parent_id")[: MAX_FORKS + 1]]
    parents.add(forks, most=MAX_FORKS)
    # Those of the forks that others go on from.
    beyond = ChainPart.objects.filter(project=project, parent_id__in=[pk for pk, _ in forks[:MAX_FORKS]])
    parents.more |= set(map(str, beyond.values_list("parent_id", flat=True).distinct()))
    after = _rows(_AFTER, [response_id, project, project, MAX_AFTER, MAX_AFTER + 1])
    parents.add([(child, str(parent)) for child, parent in after], most=MAX_AFTER)
    parents.add(_young(project, response_id, parents), most=MAX_FORKS)
    nodes = _nodes(project, list(parents.of), response_id, ttl, has_texts=has_texts)
    for node_id in parents.more:
        nodes[node_id].more = True
    branch = _branch(path[0], nodes, parents, frozenset(path), depth=0)
    known = {node.id for node in nodes.values() if not node.gone}
    following = [each for each in parents.children().get(response_id, []) if each in known]
    return ChainTree(branch, before, previous in known, following)


class _Parents:
    """Who goes on from whom. `more` are those whose followers are not all there."""

    def __init__(self, path: Sequence[str]) -> None:
        # Each of the path with the one before it; the first has none.
        self.of: dict[str, str] = dict(zip(path, ["", *path], strict=False))
        self.more: set[str] = set()

    def add(self, pairs: Sequence[tuple[str, str]], *, most: int) -> None:
        """Add ids with their parents; of more than `most` the rest is left out."""
        for child, parent in pairs[:most]:
            self.of.setdefault(child, parent)
        self.more |= {parent for child, parent in pairs[most:] if parent in self.of and child not in self.of}

    def children(self) -> dict[str, list[str]]:
        """Return the followers of each, oldest first."""
        by_parent: dict[str, list[str]] = {}
        for child, parent in sorted(self.of.items()):
            by_parent.setdefault(parent, []).append(child)
        return by_parent


def _before(project: str, response_id: str, previous: str) -> tuple[list[str], str]:
    """Return the chain that ends in a response, oldest first, and what its first one goes on from."""
    rows = _rows(_BEFORE, [response_id, project, project, MAX_BEFORE])
    if not rows and previous:  # it runs, or failed: it has no part of the chain
        rows = [(response_id, previous), *_rows(_BEFORE, [previous, project, project, MAX_BEFORE - 1])]
    if not rows:
        return [response_id], ""
    path = [row[0] for row in reversed(rows)]
    return path, rows[-1][1] or ""


def _young(project: str, response_id: str, parents: _Parents) -> list[tuple[str, str]]:
    """Return those that go on from these and run, or have failed: they have no part of a chain, and the same chat."""
    chat = Response.objects.filter(project=project, pk=response_id).values_list("chat_id", flat=True)[:1]
    newest = Response.objects.filter(project=project, chat_id=chat).exclude(chat_id="").order_by("-created_at", "-pk")
    rows = newest.values_list("pk", "previous_response_id", "status")[:MAX_YOUNG]
    young = ((pk, previous) for pk, previous, status in rows if status not in _WITH_PART)
    return [(pk, previous) for pk, previous in young if previous in parents.of and pk not in parents.of]


def _nodes(project: str, ids: Sequence[str], current: str, ttl: float, *, has_texts: bool) -> dict[str, ChainNode]:
    columns = ("pk", "status", "created_at", "input_tokens", "output_tokens", "size")
    rows = list(Response.objects.filter(project=project, pk__in=ids).values(*columns))
    since = datetime.now(UTC).timestamp() - ttl if ttl else 0.0
    rows = [row for row in rows if row["created_at"].timestamp() > since]
    texts = _texts(rows) if has_texts else {}
    nodes = {each: ChainNode(each, is_current=each == current) for each in ids}
    for row in rows:
        node = nodes[row["pk"]]
        node.gone, node.status, node.created_at = False, row["status"], row["created_at"]
        node.tokens = f"{row['input_tokens']:,} → {row['output_tokens']:,}"
        node.asked = texts.get(node.id, "")
    return nodes


def _texts(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return the beginning of what was asked, of small responses."""
    # A page must not read megabytes for a few words each.
    left, small = MAX_READ, []
    for row in rows:
        if row["size"] <= MAX_READ_EACH and row["size"] <= left:
            left -= row["size"]
            small.append(row["pk"])
    items_by_id = Response.objects.filter(pk__in=small).values_list("pk", "input_items")
    return {pk: asked_of(items) for pk, items in items_by_id}


def asked_of(items: object) -> str:
    """Return the beginning of what the user said last, or of what else came, in one line."""
    return visible(words_of(items, TEXT))


def _branch(first: str, nodes: dict[str, ChainNode], parents: _Parents, path: frozenset[str], *, depth: int) -> Branch:
    """Return a response and what goes on from it: on the path to the current one, else the oldest; others are forks."""
    children = parents.children()
    branch: Branch = []
    for node_id in _line(first, children, path):
        node = nodes[node_id]
        branch.append(node)
        following = children.get(node_id, [])
        main = _main(following, path)
        # Nested no deeper than the page can show: then only a mark says that there are more.
        beside = [each for each in following if each != main]
        if beside and depth >= MAX_NESTED:
            node.more = True
            continue
        node.forks = [_branch(each, nodes, parents, path, depth=depth + 1) for each in beside]
    return branch


def _line(first: str, children: dict[str, list[str]], path: frozenset[str]) -> Iterator[str]:
    node_id: str | None = first
    seen: set[str] = set()  # rows that were damaged elsewhere, and imported, may go in a circle
    while node_id is not None and node_id not in seen:
        seen.add(node_id)
        yield node_id
        node_id = _main(children.get(node_id, []), path)


def _main(following: Sequence[str], path: frozenset[str]) -> str | None:
    on_path = (each for each in following if each in path)
    return next(on_path, following[0] if following else None)


def _rows(sql: str, values: Sequence[str | int]) -> list[tuple[str, str | None]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall())
