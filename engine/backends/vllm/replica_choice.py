"""`ReplicaChoice`: which of several replicas a generation goes to. Pure: it knows loads, and what it was told.

A load is how many generations run on a replica. A chain (an affinity) is best off where its beginning lies in the
prefix cache; a new one where least is going on. Three rules, in this order:

1. A chain that is known goes to its home, the replica that had it last: while that has at most `KEPT` times the mean
   load, or at most `SLACK` more than the least loaded one.
2. A chain whose home turned out not to have its beginning (of the tokens of its prompt before, less than the share
   `HIT` came from the cache) has nothing to lose: it goes to the least loaded replica, and stays where none has less.
3. A new chain goes to the first replica in its own order that has at most `BOUND` times the mean load. The order is
   that of rendezvous hashing (Thaler and Ravishankar, 1998), the bound that of "Consistent Hashing with Bounded Loads"
   (Mirrokni, Thorup and Zadimoghaddam, 2016), under which no replica ever gets more.

Example: of 3 replicas, A has 4 generations, B and C have 1 each. With one more the mean is 7/3, so a new chain may go
to one with up to 2 (1.25 · 7/3, rounded up to 3, less the new one): never to A. A chain whose home is A stays there: 5
is more than 1.5 · 7/3, but not more than 1 + 8.

Workers do not talk about this. Each balances what it asks for itself; a chain that comes to another worker finds the
same replica by rule 3 where loads allow it, and by rule 1 from then on.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil

BOUND = 1.25
KEPT = 1.5
SLACK = 8
HIT = 0.5
MAX_CHAINS = 20_000  # that are remembered: some 5 MB


@dataclass(slots=True)
class _Home:
    """Where a chain was last, how long its last prompt there was, and whether its beginning was in the cache then."""

    replica: str
    prompt_tokens: int = 0
    hit: bool = True


class ReplicaChoice:
    """Of one pool. Replicas are known by their URLs."""

    def __init__(self) -> None:
        self._homes: OrderedDict[str, _Home] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def order(self, affinity: str, loads: Mapping[str, int]) -> list[str]:
        """Return the replicas that have a load, the best one for an affinity first; "" has none."""
        ranked = sorted(loads, key=lambda replica: _score(replica, affinity), reverse=True)
        by_load = sorted(ranked, key=lambda replica: loads[replica])
        first = self._first(affinity, loads, ranked, by_load) if affinity and loads else None
        return by_load if first is None else [first, *(each for each in by_load if each != first)]

    def _first(self, affinity: str, loads: Mapping[str, int], ranked: list[str], by_load: list[str]) -> str:
        home, mean = self._homes.get(affinity), (sum(loads.values()) + 1) / len(loads)
        least = loads[by_load[0]]
        if home is not None and home.replica in loads:
            load = loads[home.replica]
            if not home.hit:
                return home.replica if load == least else by_load[0]
            if load + 1 <= max(ceil(KEPT * mean), least + SLACK):
                return home.replica
        return next(replica for replica in ranked if loads[replica] + 1 <= ceil(BOUND * mean))

    def place(self, affinity: str, replica: str) -> None:
        """Note that a replica reads a chain's prompt, and so has it in its cache."""
        if not affinity:
            return
        home = self._homes.get(affinity)
        if home is None or home.replica != replica:
            self._homes[affinity] = _Home(replica)
        self._homes.move_to_end(affinity)
        if len(self._homes) > MAX_CHAINS:
            self._homes.popitem(last=False)

    def measure(self, affinity: str, replica: str, prompt_tokens: int, cached_tokens: int | None) -> None:
        """Note how many of a prompt's tokens came from the cache; None: the replica does not tell."""
        home = self._homes.get(affinity)
        if home is None or home.replica != replica:
            return
        before, home.prompt_tokens = home.prompt_tokens, prompt_tokens
        home.hit = cached_tokens is None or cached_tokens >= HIT * min(before, prompt_tokens)


def _score(replica: str, affinity: str) -> bytes:
    return blake2b(f"{replica} {affinity}".encode(errors="surrogatepass"), digest_size=8).digest()
