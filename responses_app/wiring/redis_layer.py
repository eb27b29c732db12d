"""`PatientRedisLayer`: the channel layer over Redis, which wakes an idle process twice a minute.

Its base listens with reads that end after 0.1 s and begin again, 0.24 ms of CPU each. A message ends a read at once,
however long it may take, and so does a connection that breaks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from channels_redis.pubsub import RedisPubSubChannelLayer
from redis.asyncio.connection import Connection, parse_url

LISTEN_SECONDS = 30.0  # of a read that nothing ends


class PatientRedisLayer(RedisPubSubChannelLayer):  # type: ignore[misc]  # its package has no types
    """The layer of `hosts`, each with its URL as `address`, and with options of its connections."""

    def __init__(self, *, hosts: Sequence[Mapping[str, Any]], **options: Any) -> None:
        super().__init__(hosts=[_patient(host) for host in hosts], **options)


def _patient(host: Mapping[str, Any]) -> dict[str, Any]:
    """Return a host whose connections read patiently; an URL would say itself of which class they are."""
    options = {**host, **parse_url(host["address"])}
    del options["address"]
    plain = options.get("connection_class", Connection)
    return {**options, "connection_class": type(f"Patient{plain.__name__}", (_PatientReads, plain), {})}


class _PatientReads:
    """Reads that may take some time may take `LISTEN_SECONDS`; but the URL may ask for more frequent health checks.

    The base makes those between two reads.
    """

    health_check_interval: float  # of the base; 0: none

    async def read_response(self, *arguments: Any, timeout: float | None = None, **options: Any) -> Any:
        most = min(LISTEN_SECONDS, self.health_check_interval or LISTEN_SECONDS)
        patient = max(timeout, most) if timeout else timeout
        return await super().read_response(*arguments, timeout=patient, **options)  # type: ignore[misc]
