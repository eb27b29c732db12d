"""`Session`: what belongs together, as a pool of replicas chooses by it, and as routers behind an engine are told it.

One session is one line of prompts, each of which begins with the one before: a chain of responses, a conversation, one
agent of a harness. It is named by a digest, which says nothing of what a client calls it, and in which its project has
a part: two projects never have one session.
"""

import json
from dataclasses import dataclass, replace
from hashlib import blake2b

DIGEST_BYTES = 16


def digest_of(*names: str) -> str:
    """Return a digest of names, in lower-case hexadecimal; no two lists of names read the same."""
    # As JSON in ASCII: names come from clients, and may have half a character in them.
    return blake2b(json.dumps(names).encode(), digest_size=DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a generation belongs to, and what is known of how it goes on."""

    id: str = ""  # a digest; empty: it belongs to nothing
    parent: str = ""  # the session that began this one, and with which it may share its beginning; empty for none
    project: str = ""  # a digest of whose it is; empty where nobody is asked who they are
    # It is named by what its client shares among any prompts (`prompt_cache_key`): nobody can say when it is over.
    shared: bool = False
    final: bool = False  # it is over: nothing will ask for it any more
    # Within so many seconds its next turn most likely comes, where its model calls tools; None: nobody knows.
    back_in: float | None = None

    def child(self, name: str) -> "Session":
        """Return the session of what it has begun under a name."""
        return replace(self, id=digest_of(self.id, name), parent=self.id) if self.id else self


NO_SESSION = Session()
