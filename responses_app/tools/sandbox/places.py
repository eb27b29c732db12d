"""`ContainerPlaces`: how many containers may work at once, shared between projects, and what is said where none may."""

from responses_app.tools.places import NoPlace, Places
from responses_app.tools.sandbox.records import TooManyContainers

MAX_WAITING = 64  # of one project; what waits has a request of its own that waits for it


class ContainerPlaces(Places):
    """The places of one process's containers. `seconds` is how long work may wait for one."""

    def __init__(self, *, most: int, share: int, seconds: float) -> None:
        super().__init__(most=most, share=share, seconds=seconds, most_waiting=MAX_WAITING)

    async def take(self, project: str) -> None:
        """Wait for a place, and have it until `give_back`. Raises `TooManyContainers`."""
        try:
            await super().take(project)
        except NoPlace as full:
            raise self._too_many(full) from None

    def _too_many(self, full: NoPlace) -> TooManyContainers:
        if full.is_own:
            return TooManyContainers(
                f"this project has {self._share} containers at work, as many as one project may have at once "
                "(SANDBOX_PROJECT_CONTAINERS); try again once one of them has ended"
            )
        return TooManyContainers(
            f"all {self._most} containers that this server may have at once (SANDBOX_MAX_CONTAINERS) are at work; try "
            "again later"
        )
