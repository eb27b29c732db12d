"""Ids that clients know responses by, where those are not the responses' own.

A response's own id is always made by this server: it names its row, its part of a chain and its log, and makes the ids
of its items. Two things give it a public id beside: a client that chooses one (`request_id`), and the dialect switch
`turn-id`, with which all responses of a turn have one id. Each of those is a *leg* of the turn, with a number. An id
stands for the newest leg that there is.
"""

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
