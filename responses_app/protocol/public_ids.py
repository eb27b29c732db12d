"""Ids that clients know responses by, where those are not the responses' own.

A response's own id is always made by this server: it names its row, its part of a chain and its log, and makes the ids
of its items. Two things give it a public id beside: a client that chooses one (`request_id`), and the dialect switch
`turn-id`, with which all responses of a turn have one id. Each of those is a *leg* of the turn, with a number.

What an id stands for: who reads it means the newest leg, whatever became of that; who deletes it means all legs; who
continues it means the leg that `leg_to_continue` says.
"""

from collections.abc import Collection, Sequence, Set
from typing import NamedTuple


class PublicId(NamedTuple):
    """What clients call a response; of several that they call the same, `leg` counts from 1."""

    name: str
    leg: int = 1

    @property
    def next_leg(self) -> "PublicId":
        """The id of the response that goes on with the same turn."""
        return PublicId(self.name, self.leg + 1)


class Leg(NamedTuple):
    """A response under its public id: its own id, and which leg it is."""

    response_id: str
    number: int


class TurnLeg(NamedTuple):
    """A leg as whoever continues its turn looks at it.

    `status` is the response's, `awaited` are the calls that what continues it must answer; None where nothing can
    continue it.
    """

    response_id: str
    number: int
    status: str
    awaited: Collection[str] | None


def leg_to_continue(legs: Sequence[TurnLeg], answered: Set[str]) -> TurnLeg | None:
    """Return which of a turn's legs, the newest first, a request continues that says what came of the calls `answered`.

    That is the newest that can be continued: one that failed or was cancelled is passed over, so the request that it
    was made for can be sent again. Where a later leg has answered those calls already, it is the one that made them:
    else the model would read their outputs a second time, behind its own answer.
    """
    continuable = [leg for leg in legs if leg.awaited is not None]
    made = (leg for leg in continuable if leg.awaited and not answered.isdisjoint(leg.awaited))
    return next(made, continuable[0] if continuable else None)
