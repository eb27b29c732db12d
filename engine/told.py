"""What a message says, in no model format's own words: so a conversation goes on with a model of another format."""

from dataclasses import dataclass
from enum import Enum, auto


class ToldKind(Enum):
    """Who says it to whom, and what it is."""

    USER = auto()
    DEVELOPER = auto()  # instructions in the middle of a conversation
    NOTE = auto()  # of the server to the model
    REASONING = auto()
    PREAMBLE = auto()
    ANSWER = auto()
    CALL = auto()
    OUTPUT = auto()  # what a call gave back


@dataclass(frozen=True, slots=True)
class Told:
    """A message. `name` is what a call calls, or whose output it is, without a format's own prefix.

    `hosted`: a tool of the server's, else the client's function. `freeform`: it is called with text, which is not JSON.
    """

    kind: ToldKind
    text: str
    name: str = ""
    hosted: bool = False
    freeform: bool = False
