"""`ReplicaChoice` says which of several replicas a generation goes to. Pure: it knows loads, and where sessions were. A
load is how many generations run on a replica. A session is best off where its beginning lies in the prefix cache; a new
one where least is going on. Four rules, in this order:

1. A session that is known goes to its home, the replica that had it last: while that has at most `KEPT` times the mean
   load, or at most `SLACK` more than the least loaded one.
2. A session whose home turned out not to have its beginning (of the tokens of its prompt before, less than the share
   `HIT` came from the cache) has little to lose: it stays only while its home has at most `BOUND` times the mean load,
   and goes to the least loaded replica else. It does not go at once: where caches are too small for all sessions, those
   that wander leave copies behind, which push out what others come back for (`bench/routing` shows how much).
3. A new session that has kin, others that begin as it does, goes where one of them was asked last; else one that has a
   parent, with whose prompt it may begin, goes to that one's home: while that has at most `SLACK` more than the least
   loaded one, to which it goes else.
4. Any other new session goes to the first replica in its own order that has at most `BOUND` times the mean load. The
   order is that of rendezvous hashing (Thaler and Ravishankar, 1998), the bound that of "Consistent Hashing with
   Bounded Loads" (Mirrokni, Thorup and Zadimoghaddam, 2016), under which no replica ever gets more.

Example: of 3 replicas, A has 4 generations, B and C have 1 each. With one more the mean is 7/3, so a new session may go
to one with up to 2 (1.25 · 7/3, rounded up to 3, less the new one): never to A. A session whose home is A stays there:
5 is more than 1.5 · 7/3, but not more than 1 + 8.

Kin choose by the order of what they share. 8 attempts at one task that come at once to idle replicas all go to one, so
their prompt is computed there once. Of 200 that one has the first 8, then another one has the next, and so on: the
prompt is computed once on each replica, and none has much more to do than the others.

Workers do not talk about this. Each balances what it asks for itself; a session that comes to another worker finds the
same replica by rule 4 where loads allow it, and by rule 1 from then on.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil

BOUND = 1.25  # times the mean load: what a new session may find at its replica, and one that lost its beginning at home
KEPT = 1.5  # times the mean load: what a known session may find at its home
SLACK = 8  # generations more than the least loaded has: the same
HIT = 0.25  # of a prompt before: the share that came from the cache where its beginning was still there
MAX_SESSIONS = 20_000  # that are remembered: some 5 MB


@dataclass(slots=True)
class _Home:
    """Where a session was last."""

    replica: str
    prompt_tokens: int = 0  # of its last prompt there
    hit: bool = True  # the beginning of that prompt was in the cache


class ReplicaChoice:
    """Chooses among the replicas of one pool, which it knows by their URLs."""

    def __init__(self) -> None:
        self._homes: OrderedDict[str, _Home] = OrderedDict()  # by the sessions' ids, the least recently used first
        self._kin: OrderedDict[str, _Home] = OrderedDict()  # where one of several that begin alike was asked last

    def __len__(self) -> int:
        return len(self._homes)

    def order(self, session: str, loads: Mapping[str, int], kin: str = "", *, parent: str = "") -> list[str]:
        """Return the replicas that have a load, the best one for a session first; "" is none."""
        # `ranked`, then stable sorting by load: among replicas with the same load the session's own order decides, or
        # that of its kin.
        ranked = sorted(loads, key=lambda replica: _score(replica, kin or session), reverse=True)
        by_load = sorted(ranked, key=lambda replica: loads[replica])
        like = self._kin.get(kin) or self._homes.get(parent)
        first = self._first(self._homes.get(session), like, loads, ranked, by_load) if session and loads else None
        return by_load if first is None else [first, *(each for each in by_load if each != first)]

    def _first(
        self, home: _Home | None, like: _Home | None, loads: Mapping[str, int], ranked: list[str], by_load: list[str]
    ) -> str:
        """Return the best one for a session with this home; at the home of `like` lies what may be its beginning."""
        # `+ 1`: with the generation that is about to come.
        mean, least = (sum(loads.values()) + 1) / len(loads), loads[by_load[0]]
        if home is None and like is not None and like.replica in loads:
            # One prompt is soon computed: not worth what a whole session is, of which a replica may have much more.
            return like.replica if loads[like.replica] + 1 <= least + SLACK else by_load[0]
        if home is not None and home.replica in loads:
            kept = max(ceil(KEPT * mean), least + SLACK) if home.hit else ceil(BOUND * mean)
            if loads[home.replica] + 1 <= kept:
                return home.replica
            if not home.hit:
                return by_load[0]
        # By `BOUND`. There always is one: not every replica can be above the mean.
        return next(replica for replica in ranked if loads[replica] + 1 <= ceil(BOUND * mean))

    def place(self, session: str, replica: str) -> None:
        """Note that a replica reads a session's prompt, and so has it in its cache."""
        _remember(self._homes, session, replica)

    def follow(self, kin: str, replica: str) -> None:
        """Note that a replica is asked by one of several that begin alike, so that the next one follows it.

        Before it has read the prompt: those that come meanwhile shall wait there for what it computes, and not have it
        computed elsewhere, too.
        """
        _remember(self._kin, kin, replica)

    def forget(self, session: str) -> bool:
        """Forget a session that is over; return whether it was known."""
        return self._homes.pop(session, None) is not None

    def measure(self, session: str, replica: str, prompt_tokens: int, cached_tokens: int | None) -> None:
        """Note how many of a prompt's tokens came from the cache; None: the replica does not tell."""
        home = self._homes.get(session)
        # It has moved meanwhile: another generation of the session runs elsewhere.
        if home is None or home.replica != replica:
            return
        before = home.prompt_tokens
        # A much shorter prompt says nothing about the long one: coding agents have small things done in a session
        # beside it, such as a title. Where more of these follow, the long one has been cut back.
        if 2 * prompt_tokens < before:
            home.prompt_tokens = before // 2
            return
        home.prompt_tokens = prompt_tokens
        # Of the shorter of the two prompts: a session that was cut back cannot have more in common than it has.
        home.hit = cached_tokens is None or cached_tokens >= HIT * min(before, prompt_tokens)


def _remember(homes: OrderedDict[str, _Home], name: str, replica: str) -> None:
    """Note where something is at home; "" is nothing."""
    if not name:
        return
    home = homes.get(name)
    # A home that stays the same keeps its figures (`prompt_tokens`, `hit`).
    if home is None or home.replica != replica:
        homes[name] = _Home(replica)
    homes.move_to_end(name)
    if len(homes) > MAX_SESSIONS:
        homes.popitem(last=False)


def _score(replica: str, name: str) -> bytes:
    # `surrogatepass`: a group comes from a client, and may have half a character in it.
    return blake2b(f"{replica} {name}".encode(errors="surrogatepass"), digest_size=8).digest()
