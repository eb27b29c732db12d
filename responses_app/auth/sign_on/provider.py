"""`Provider`: asks the OpenID Connect provider for its endpoints, tokens and keys; bounded in time and size.

Nothing is asked before somebody signs in, so a provider that is away holds up no start. Where its endpoints are is
asked for anew after a minute. So nobody is sent to a provider that is away: they are told on a page instead.
"""

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from engine.errors import reason_of
from responses_app.auth.sign_on.refusal import Reason, SignOnRefused
from responses_app.auth.sign_on.settings import SignOnSettings, is_safe_url
from responses_app.protocol.setting import KIB

SECONDS = 10.0  # for one request, all of it
MAX_ANSWER = 256 * KIB  # bytes of one answer
MAX_AT_ONCE = 32  # requests of one process
FRESH_SECONDS = 60.0  # for which the endpoints are not asked for again
MAX_KEYS = 100  # of the provider that are looked at
WELL_KNOWN = "/.well-known/openid-configuration"
Claims = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """What the provider says of itself."""

    issuer: str  # as its tokens name it
    authorization: str
    token: str
    keys: str
    userinfo: str  # "" where it has none, as with the next one
    end_session: str
    takes_secret_in_form: bool  # else in a header
    names_itself: bool  # whenever it sends somebody back (`iss`, RFC 9207)

    def check_sender(self, named: Sequence[str]) -> None:
        """Raise `SignOnRefused` where another provider sends somebody back: `named` are the values of `iss` there."""
        if any(each != self.issuer for each in named) or (self.names_itself and not named):
            raise SignOnRefused(Reason.ISSUER_FOREIGN, f"iss is {[each[:200] for each in named[:3]]}")


class Provider:
    """The provider, as one process asks it."""

    def __init__(self, settings: SignOnSettings) -> None:
        self._settings = settings
        self._endpoints: Endpoints | None = None
        self._asked_at = 0.0  # for the endpoints
        self._asking = 0

    async def endpoints(self) -> Endpoints:
        """Return its endpoints. Raises `SignOnRefused`, as all here do."""
        now = time.monotonic()
        if self._endpoints is None or now - self._asked_at >= FRESH_SECONDS:
            said = await self._ask("GET", self._settings.oidc_issuer.rstrip("/") + WELL_KNOWN)
            self._endpoints, self._asked_at = self._read(said), now
        return self._endpoints

    async def tokens(self, form: Mapping[str, str]) -> Claims:
        """Return what the provider gives for a code. The form has the client's id and secret."""
        where, fields, headers = await self.endpoints(), dict(form), {}
        if not where.takes_secret_in_form:
            pair = f"{quote(fields['client_id'], safe='')}:{quote(fields.pop('client_secret'), safe='')}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        return await self._ask("POST", where.token, headers, fields)

    async def keys(self) -> Sequence[object]:
        """Return its public keys, as JSON has them."""
        keys = (await self._ask("GET", (await self.endpoints()).keys)).get("keys")
        if not isinstance(keys, list):
            raise SignOnRefused(Reason.PROVIDER_INVALID, "its jwks_uri has no list of keys")
        return keys[:MAX_KEYS]

    async def userinfo(self, access_token: object) -> Claims:
        """Return what else it tells of who signs in; nothing where it has no such endpoint."""
        url = (await self.endpoints()).userinfo
        if not url or not isinstance(access_token, str) or not access_token.isprintable():
            return {}
        return await self._ask("GET", url, {"Authorization": f"Bearer {access_token}"})

    def _read(self, said: Claims) -> Endpoints:
        def url(name: str, *, needed: bool = True) -> str:
            value = said.get(name)
            if value is None and not needed:
                return ""
            # A provider on this machine may go without TLS; none elsewhere may send anybody, or a secret, there.
            plain = self._settings.oidc_issuer.startswith("http://")
            if not isinstance(value, str) or not is_safe_url(value, plain=plain):
                raise SignOnRefused(Reason.PROVIDER_INVALID, f"its {name} is {str(value)[:100]!r}")
            return value

        issuer = url("issuer")
        if issuer.rstrip("/") != self._settings.oidc_issuer.rstrip("/"):
            raise SignOnRefused(
                Reason.PROVIDER_INVALID, f"it calls itself {issuer[:200]!r}, which OIDC_ISSUER has to be"
            )
        ways = said.get("token_endpoint_auth_methods_supported")
        return Endpoints(
            issuer=issuer,
            authorization=url("authorization_endpoint"),
            token=url("token_endpoint"),
            keys=url("jwks_uri"),
            userinfo=url("userinfo_endpoint", needed=False),
            end_session=url("end_session_endpoint", needed=False),
            takes_secret_in_form=isinstance(ways, list) and "client_secret_post" in ways,
            names_itself=said.get("authorization_response_iss_parameter_supported") is True,
        )

    async def _ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, form: Mapping[str, str] | None = None
    ) -> Claims:
        if self._asking >= MAX_AT_ONCE:
            raise SignOnRefused(Reason.PROVIDER_BUSY)
        self._asking += 1
        try:
            async with asyncio.timeout(SECONDS):
                status, body = await _answer(method, url, headers, form)
        except TimeoutError:
            raise SignOnRefused(Reason.PROVIDER_AWAY, f"{url} did not answer within {SECONDS:g} s") from None
        finally:
            self._asking -= 1
        return _object(url, status, body, is_code=form is not None)


async def _answer(
    method: str, url: str, headers: Mapping[str, str] | None, form: Mapping[str, str] | None
) -> tuple[int, bytes]:
    import aiohttp  # takes a while, and is loaded with the first sign-in

    try:
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(
                method,
                url,
                data=form,
                headers={"Accept": "application/json", **(headers or {})},
                allow_redirects=False,
            ) as answer,
        ):
            body = b""
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > MAX_ANSWER:
                    raise SignOnRefused(Reason.PROVIDER_INVALID, f"{url} answered more than {MAX_ANSWER} bytes")
            return answer.status, body
    # ValueError: what it says is no HTTP.
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise SignOnRefused(Reason.PROVIDER_AWAY, f"{url}: {reason_of(error)}") from None


def _object(url: str, status: int, body: bytes, *, is_code: bool) -> Claims:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        said = None
    if status == 200 and isinstance(said, dict):
        return said
    error = said.get("error") if isinstance(said, dict) else None
    if is_code and status in (400, 401) and isinstance(error, str):
        raise SignOnRefused(Reason.CODE_REFUSED, f"{url} answered {status} {error[:100]!r}")
    if status >= 500:
        raise SignOnRefused(Reason.PROVIDER_AWAY, f"{url} answered {status}")
    raise SignOnRefused(Reason.PROVIDER_INVALID, f"{url} answered {status}, and not with a JSON object")
