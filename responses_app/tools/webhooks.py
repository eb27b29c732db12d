"""`WebhookSender`: sends a message to a receiver, signed, by the rules of `network`: no inward hosts, no redirects.

An endpoint's URL is a client's. Its secrets are sealed where they are kept, and opened here, for each attempt.
"""

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from responses_app.protocol.sealing import SealBroken, Sealer
from responses_app.protocol.setting import KIB
from responses_app.protocol.webhooks import new_secret, signed_headers
from responses_app.stores.webhooks import EndpointRecord
from responses_app.tools.network import Network, NetworkError
from responses_app.tools.settings import WebhookNetworkSettings

if TYPE_CHECKING:
    from responses_app.tools.browser.fetching import Fetcher

PURPOSE = "webhook secret"  # of the seal
MAX_ANSWER = 4 * KIB  # bytes of an answer that are read: only its status counts
LOOKUP_SECONDS = 5.0  # for the name of a new endpoint
NOT_SEALED_HERE = "Its secret cannot be opened: REASONING_ENCRYPTION_KEYS or SECRET_KEY has changed. Rotate the secret."


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of an attempt."""

    status_code: int | None  # of the answer; None for none
    problem: str = ""  # why it did not arrive; "" where it did


class WebhookSender:
    """Sends messages; has connections, so it belongs to one event loop, which closes it."""

    def __init__(self, settings: WebhookNetworkSettings, sealer: Sealer) -> None:
        self.seconds = settings.webhook_seconds  # that an attempt takes at most
        self._allowed = settings.webhook_allowed_hosts
        self._network = Network("WEBHOOK_ALLOWED_HOSTS", self._allowed)
        self._sealer = sealer
        self._fetcher: Fetcher | None = None  # made for the first message: aiohttp takes a while to import

    def new_secret(self, project: str) -> tuple[str, str]:
        """Return a new secret, and the same sealed."""
        secret = new_secret(os.urandom(32))
        return secret, self._sealer.seal(PURPOSE, project, secret.encode())

    async def check(self, url: str) -> None:
        """Refuse a URL that nothing is sent to. Raises `NetworkError`; a name may lead elsewhere later."""
        parts = urlsplit(url)
        self._check_scheme(url)
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                await self._network.addresses(parts.hostname or "", parts.port or _port(parts.scheme))
        except TimeoutError:
            raise NetworkError(f"The host {(parts.hostname or '')[:80]!r} was not found in time.") from None

    async def send(self, endpoint: EndpointRecord, event_id: str, body: str, *, at: float) -> Sent:
        """Send a message. `at` is the Unix time; raises nothing that is the receiver's doing."""
        from responses_app.tools.browser.fetching import Fetcher, FetchLimits

        if self._fetcher is None:
            self._fetcher = Fetcher(self._network)
        try:
            self._check_scheme(endpoint.url)
            secrets = self._secrets(endpoint)
            headers = signed_headers(event_id, body, secrets, at=int(at))
            limits = FetchLimits(seconds=self.seconds, max_bytes=MAX_ANSWER)
            answer = await self._fetcher.post(endpoint.url, limits, body=body.encode(), headers=headers)
        except NetworkError as problem:
            return Sent(None, str(problem))
        except SealBroken:
            return Sent(None, NOT_SEALED_HERE)
        if 200 <= answer.status < 300:
            return Sent(answer.status)
        hint = " Redirects are not followed." if 300 <= answer.status < 400 else ""
        return Sent(answer.status, f"The receiver answered with status {answer.status}.{hint}")

    async def aclose(self) -> None:
        """Close all connections. Safe to call twice."""
        if self._fetcher is not None:
            await self._fetcher.aclose()
        self._network.close()

    def _secrets(self, endpoint: EndpointRecord) -> list[str]:
        sealed = [each for each in (endpoint.secret, endpoint.old_secret) if each]
        return [self._sealer.open(PURPOSE, endpoint.project, each).decode() for each in sealed]

    def _check_scheme(self, url: str) -> None:
        """Refuse plain HTTP to what the operator has not named: anybody on the way could read and change it."""
        parts = urlsplit(url)
        if parts.scheme != "https" and not self._allowed.names_host(parts.hostname or "", parts.port or 80):
            raise NetworkError(
                "It begins with https://. The server's operator can allow http:// for a host with "
                "WEBHOOK_ALLOWED_HOSTS."
            )


def _port(scheme: str) -> int:
    return 443 if scheme == "https" else 80
