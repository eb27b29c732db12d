"""`Known`: which containers a host has, whose they are, and which responses use them.

A chain of responses keeps its container: `of_chain` finds it by the response that is continued.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from responses_app.tools.sandbox.living import LivingContainer
from responses_app.tools.sandbox.records import ChainFound, ContainerNotFound

MAX_KNOWN = 10_000  # containers, nearly all of which nothing was ever done in
MAX_CHAIN = 1000  # responses that are remembered of one container


class Known:
    """Containers by their ids, oldest first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._containers: dict[str, LivingContainer] = {}
        self._of_responses: dict[str, str] = {}  # ids of containers, by the ids of responses that use them

    def __len__(self) -> int:
        return len(self._containers)

    def __iter__(self) -> Iterator[LivingContainer]:
        # A copy: some of them may end while somebody looks at each.
        return iter(list(self._containers.values()))

    def __contains__(self, container: LivingContainer) -> bool:
        return container.id in self._containers

    @property
    def is_full(self) -> bool:
        """Those that nothing was done in cost little, but their number must end."""
        return len(self._containers) >= MAX_KNOWN

    def add(self, container: LivingContainer) -> None:
        """Know a container, and the responses of its chain."""
        self._containers[container.id] = container
        self._of_responses.update(dict.fromkeys(container.chain, container.id))

    def remove(self, container: LivingContainer) -> None:
        """Know a container no more: nobody finds it from now on."""
        self._containers.pop(container.id, None)
        for key in container.chain:
            self._forget_key(key, container.id)

    def find(self, project: str, id: str) -> LivingContainer:
        """Return a container. Raises `ContainerNotFound`."""
        container = self._containers.get(id)
        if container is None or container.project != project or container.has_expired(self._clock()):
            raise ContainerNotFound(id)
        return container

    def of_project(self, project: str) -> list[LivingContainer]:
        """Return the containers of a project, oldest first."""
        return [each for each in self if each.project == project]

    def of_chain(self, project: str, keys: Sequence[str], network: str) -> ChainFound | None:
        """Return the first container that one of these names: ids of containers, or responses of `join_chain`.

        One that may reach something else than `network` says (`LivingContainer.network_key`) is passed over.
        """
        for place, key in enumerate(keys):
            # The first that is still there: an earlier key may be of a container that has expired.
            with contextlib.suppress(ContainerNotFound):
                found = self.find(project, self._of_responses.get(key, key))
                if found.network_key == network:
                    return ChainFound(place, found.record())
        return None

    def join_chain(self, id: str, keys: Iterable[str]) -> None:
        """Remember that these responses use a container: the first of each chain stands for all of it."""
        container = self._containers.get(id)
        if container is None:
            return
        for key in keys:
            self._of_responses[key] = id
            container.chain[key] = None
            container.chain.move_to_end(key)
            while len(container.chain) > MAX_CHAIN:
                self._forget_key(container.chain.popitem(last=False)[0], id)

    def _forget_key(self, key: str, id: str) -> None:
        # The response may use another container by now.
        if self._of_responses.get(key) == id:
            del self._of_responses[key]


def least_missed(of: Iterable[LivingContainer]) -> LivingContainer:
    """Return the one that was idle for longest, of the project that has most; one that works is last."""
    every = list(of)
    of_project = Counter(each.project for each in every)
    # `max`: an idle one before one that works; then of the project with most; then the one used longest ago.
    return max(every, key=lambda each: (not each.working, of_project[each.project], -each.last_active))
