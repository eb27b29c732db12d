"""`WaysOut`: which containers of a host may reach something, and by which proxy."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from responses_app.tools.egress.policy import EgressPolicy
from responses_app.tools.sandbox.base import BaseSandbox
from responses_app.tools.sandbox.living import LivingContainer
from responses_app.tools.sandbox.records import NetworkRefused

if TYPE_CHECKING:
    from responses_app.tools.egress.proxies import ContainerProxies, ContainerProxy


class WaysOut:
    """The proxies of a host's containers; without `make` there are none."""

    def __init__(self, make: "Callable[[], ContainerProxies] | None") -> None:
        self._make = make
        self._making = asyncio.Lock()
        self._proxies: ContainerProxies | None = None  # made for the first container that may reach something

    async def check(self, policy: EgressPolicy, sandbox: BaseSandbox) -> "ContainerProxies":
        """Return what makes the proxies. Raises `NetworkRefused` where no container may have this policy."""
        if self._make is None:
            raise NetworkRefused("containers have no network here; leave 'network_policy' out")
        async with self._making:
            if self._proxies is None:
                self._proxies = await asyncio.to_thread(self._make)  # its modules take long to import
        if refusal := self._proxies.refusal(policy):
            raise NetworkRefused(refusal)
        if not sandbox.has_ways_out:
            raise NetworkRefused(
                f"the sandbox of this server is {sandbox.name}, whose containers have no network of their own, so none "
                "of them may reach anything; leave 'network_policy' out"
            )
        return self._proxies

    async def of(self, container: LivingContainer, sandbox: BaseSandbox) -> "ContainerProxy | None":
        """Return the proxy of a container; None where it may reach nothing. Raises `NetworkRefused`."""
        if container.network is None:
            return None
        # Again: one that was saved may be of a time with other settings.
        proxies = await self.check(container.network, sandbox)
        if container.proxy is None:
            container.proxy = await proxies.proxy(container.project, container.network)
        return container.proxy

    def close(self) -> None:
        """End what the proxies share."""
        if self._proxies is not None:
            self._proxies.close()
