"""`WebhookSender`: sends a message to a receiver, signed, by the rules of `network`: no inward hosts, no redirects.

An endpoint's URL is a client's. Its secrets are sealed where they are kept, and opened here, for each attempt.
"""

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from responses_app.kit.clock import utc
from responses_app.protocol.sealing import SealBroken, Sealer
from responses_app.protocol.setting import KIB
from responses_app.resources.webhooks.messages import new_secret, signed_headers
from responses_app.resources.webhooks.settings import WebhookSettings
from responses_app.tools.network import Network, NetworkError

if TYPE_CHECKING:
    from responses_app.resources.webhooks.model import WebhookEndpoint
    from responses_app.tools.browser.fetching import Fetcher

PURPOSE = "webhook secret"  # of the seal
MAX_ANSWER = 4 * KIB  # bytes of an answer that are read: only its status counts
# Beyond the 256 messages that `duty` has under way at once, so that none waits for another's receiver: also
# where many endpoints are at one host. The rest is for tests of endpoints.
MAX_CONNECTIONS = 512
# Names that are looked up at once: more than endpoints that `duty` serves at once, so that none waits for the
# name server of another.
MAX_LOOKUPS = 64
LOOKUP_SECONDS = 5.0  # for the name of a new endpoint
TESTS_A_MINUTE = 30  # of one project, through one worker
MINUTE = 60.0
NOT_SEALED_HERE = "Its secret cannot be opened: REASONING_ENCRYPTION_KEYS or SECRET_KEY has changed. Rotate the secret."


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of an attempt."""

    status_code: int | None  # of the answer; None for none
    problem: str = ""  # why it did not arrive; "" where it did


class WebhookSender:
    """Sends messages; has connections, so it belongs to one event loop, which closes it."""

    def __init__(self, settings: WebhookSettings, sealer: Sealer) -> None:
        self.seconds = settings.webhook_seconds
        self._allowed = settings.webhook_allowed_hosts
        self._network = Network("WEBHOOK_ALLOWED_HOSTS", self._allowed, max_lookups=MAX_LOOKUPS)
        # Its lookups are its own: names of new endpoints, of which there may be any number, hold up no message.
        self._new_ones = Network("WEBHOOK_ALLOWED_HOSTS", self._allowed)
        self._sealer = sealer
        self.tests = RecentTests()  # that projects have asked for
        self._fetcher: Fetcher | None = None  # made for the first message: aiohttp takes a while to import

    def new_secret(self, project: str) -> tuple[str, str]:
        """Return a new secret, and the same sealed."""
        secret = new_secret(os.urandom(32))
        return secret, self._sealer.seal(PURPOSE, project, secret.encode())

    async def check(self, url: str) -> None:
        """Refuse a URL that nothing is sent to. Raises `NetworkError`; a name may lead elsewhere later."""
        _check_form(url)
        self._check_scheme(url)
        parts = urlsplit(url)
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                port = parts.port or (443 if parts.scheme == "https" else 80)
                await self._new_ones.addresses(parts.hostname or "", port)
        except TimeoutError:
            raise NetworkError(f"The host {(parts.hostname or '')[:80]!r} was not found in time.") from None

    async def send(self, endpoint: "WebhookEndpoint", event_id: str, body: str, *, at: float) -> Sent:
        """Send a message. `at` is the Unix time; raises nothing that is the receiver's doing."""
        from responses_app.tools.browser.fetching import Fetcher, FetchLimits

        if self._fetcher is None:
            self._fetcher = Fetcher(
                self._network, max_connections=MAX_CONNECTIONS, max_connections_per_host=MAX_CONNECTIONS
            )
        try:
            self._check_scheme(endpoint.url)
            secrets = self._secrets(endpoint, at)
            headers = signed_headers(event_id, body, secrets, at=int(at))
            limits = FetchLimits(seconds=self.seconds, max_bytes=MAX_ANSWER, unpacked=False)
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
        self._new_ones.close()

    def _secrets(self, endpoint: "WebhookEndpoint", at: float) -> list[str]:
        secrets = [self._sealer.open(PURPOSE, endpoint.project, endpoint.secret).decode()]
        if endpoint.old_secret_until is not None and endpoint.old_secret_until > utc(at):
            # Where the server's keys have changed, a rotation mends it, also one that keeps the old secret.
            with suppress(SealBroken):
                secrets.append(self._sealer.open(PURPOSE, endpoint.project, endpoint.old_secret).decode())
        return secrets

    def _check_scheme(self, url: str) -> None:
        """Refuse plain HTTP to what the operator has not named: anybody on the way could read and change it."""
        parts = urlsplit(url)
        if parts.scheme != "https" and not self._allowed.names_host(parts.hostname or "", parts.port or 80):
            raise NetworkError(
                "It must begin with https://. The server's operator can allow http:// for a host with "
                "WEBHOOK_ALLOWED_HOSTS."
            )


class RecentTests:
    """The test events of the last minute, as one worker knows them: none uses an endpoint's test to flood others.

    `clock` is in seconds, and never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tests: dict[str, deque[float]] = {}  # when each was sent, by project

    def seconds_until_room(self, project: str) -> int:
        """Count a test and return 0; where the project has had as many as it may, return how long it has to wait."""
        since = self._clock() - MINUTE
        for name, times in list(self._tests.items()):
            while times and times[0] <= since:
                times.popleft()
            if not times:
                del self._tests[name]
        mine = self._tests.setdefault(project, deque())
        if len(mine) >= TESTS_A_MINUTE:
            return max(1, math.ceil(mine[0] - since))
        mine.append(self._clock())
        return 0


def _check_form(url: str) -> None:
    try:
        parts = urlsplit(url)
        well_formed = bool(parts.scheme in ("https", "http") and parts.hostname and parts.port != 0)
    except ValueError:  # its host is not one, or its port is no number
        well_formed = False
    if not well_formed or not url.isprintable() or " " in url:
        raise NetworkError(f"{url[:80]!r} is not the URL of a receiver, like https://example.com/webhooks.")
    if parts.username is not None or parts.password is not None:
        raise NetworkError("It has a user or a password. Leave them out: the signature says who sends.")
