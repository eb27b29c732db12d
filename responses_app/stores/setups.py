"""Named setups of the playground that a project keeps, and how many it may have."""

from dataclasses import dataclass

from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import JsonObject

MAX_SETUPS = 200  # of a project
MAX_TOGETHER = 4 << 20  # characters of JSON of all of a project's, since they are read in one list


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupRecord:
    """A named setup. Times are Unix seconds."""

    id: str  # "pmpt_…"
    name: str  # no two of a project have the same
    setup: JsonObject  # as the page sent it
    created_at: int
    updated_at: int


class TooManySetups(StoreError):
    """A project has as many setups as it may have, or they would be larger than they may be together."""
