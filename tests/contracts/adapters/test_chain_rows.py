"""A chain that was read at once means what its links meant, whatever they hold."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.base import MessageKind
from responses_app.protocol.prompt.chain import ChainLink, drop_oldest, new_link
from responses_app.stores.database.responses.lookups import PART_COLUMNS, chain_of
from responses_app.stores.database.responses.rows import part_row
from tests.contracts.store import call, facts
from tests.unit.protocol.test_chain import DAY, message, random_messages

Turns = Sequence[Sequence[tuple[MessageKind, list[int]]]]


def chain(turns: Turns, parent: ChainLink | None = None) -> ChainLink:
    """Return a chain whose links each call a function too, the same one in every other turn."""
    link = parent
    for number, turn in enumerate(turns):
        messages = [message(kind, *tokens) for kind, tokens in turn]
        link = new_link(
            link,
            response_id=f"resp_{number}",
            started_on=DAY,
            messages=messages,
            items=[call(f"name_{number}", f"call_{number // 2}")],
        )
    assert link is not None
    return link


def rows_of(link: ChainLink) -> list[tuple[Any, ...]]:
    """Return a chain's rows, the oldest first, as the query gives them."""
    rows = []
    for depth, part in enumerate(link.lineage()):
        row = part_row("project", part)
        rows.append((*(row[column] for column in PART_COLUMNS), depth))
    return rows[::-1]


@settings(deadline=None, max_examples=200)
@given(st.lists(random_messages, min_size=1, max_size=6), st.lists(random_messages, max_size=3))
def test_it_means_the_same(turns: Turns, later: Turns) -> None:
    link = chain(turns)
    read = chain_of(rows_of(link))
    assert facts(read) == facts(link)
    assert len(list(read.lineage())) <= 2
    assert read.total_bytes <= link.total_bytes
    whole = link.prompt_tokens()
    assert [drop_oldest(read, limit) for limit in range(len(whole))] == [
        drop_oldest(link, limit) for limit in range(len(whole))
    ]
    if later:
        assert facts(chain(later, read)) == facts(chain(later, link))


@settings(deadline=None, max_examples=100)
@given(st.lists(random_messages, min_size=1, max_size=6), st.lists(random_messages, min_size=1, max_size=3))
def test_so_does_one_that_was_written_again(turns: Turns, later: Turns) -> None:
    """As happens to a chain that was deleted after it was read: its one or two links are stored as parts."""
    link = chain(turns)
    read = chain_of(rows_of(chain(later, chain_of(rows_of(link)))))
    assert facts(read)[1:] == facts(chain(later, link))[1:]


def test_a_chain_of_empty_links() -> None:
    link = chain([[], [], []])
    assert facts(chain_of(rows_of(link))) == facts(link)
