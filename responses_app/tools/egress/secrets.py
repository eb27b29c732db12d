"""Secrets of a container's domains: what stands for them inside, and where the values take its place.

Inside, the variable of a secret holds a text that nobody can guess. The proxy puts the value there where it stands in
the target or in the headers of a request to the secret's domain, also inside of `Authorization: Basic …`. It does not
in bodies: what is sent there is often published by whoever gets it, and the model could read the value then.

`masking.Mask` does the contrary with what comes back: a host may answer with what it was sent. A host that answers with
a value in a form that is not known there tells it: an allowed domain is trusted so far.
"""

import base64
import binascii
import re
import secrets as randomness
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from responses_app.tools.egress.masking import Mask, forms_of
from responses_app.tools.egress.policy import EgressPolicy

PREFIX = "respsite-secret-"
KEPT_VALUES = 4  # of each secret: values that were given before may still come back
_BASIC = re.compile(rb"basic +([A-Za-z0-9+/=]+) *", re.IGNORECASE)

Headers = Sequence[tuple[bytes, bytes]]


class SecretLost(Exception):
    """A request has what stands for a secret whose value is not known any more; the text is its name."""


class SecretExposed(Exception):
    """A request that others could read has what stands for a secret; the text is its name."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The head of a request, with values in it."""

    target: bytes = field(repr=False)
    headers: Headers = field(repr=False)
    # What was put in besides the values themselves, and what stood there: it is to be masked, too.
    encoded: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)


class Placeholders:
    """What stands for the secrets of one container, for as long as that lives in memory."""

    def __init__(self, policy: EgressPolicy) -> None:
        # Two domains may have a secret of one name: then one text stands for both.
        self.by_name = {each.name: PREFIX + randomness.token_hex(20) for each in policy.secrets}
        self._most = KEPT_VALUES * len(policy.secrets)
        self._values: dict[str, bytes] = {}  # and what stands for each, the one that was used last at the end

    def fill(
        self, policy: EgressPolicy, host: str, port: int, head: tuple[bytes, Headers], *, is_private: bool
    ) -> Filled:
        """Return the target and the headers of a request to a host, with the values of its secrets.

        `is_private`: nobody on the way can read them. Raises `SecretLost`, `SecretExposed`.
        """
        target, headers = head
        encoded: dict[bytes, bytes] = {}
        for secret in policy.secrets_for(host, port):
            stands = self.by_name[secret.name].encode()
            if not _has(stands, target, headers):
                continue
            if not is_private:
                raise SecretExposed(secret.name)
            if secret.value is None:
                raise SecretLost(secret.name)
            value = secret.value.encode()
            target = target.replace(stands, quote(secret.value, safe="").encode())
            headers = [(name, _filled(content, stands, value, encoded)) for name, content in headers]
        return Filled(target, headers, encoded)

    def mask(self, policy: EgressPolicy, encoded: Mapping[bytes, bytes]) -> "Mask":
        """Return what takes all values of a container out of what it is sent, also those that it had before."""
        for secret in policy.secrets:
            if secret.value is not None:
                self._values.pop(secret.value, None)
                self._values[secret.value] = self.by_name[secret.name].encode()
        while len(self._values) > self._most:
            del self._values[next(iter(self._values))]
        found = {form: stands for value, stands in self._values.items() for form in forms_of(value)}
        return Mask({**found, **encoded})


def _has(stands: bytes, target: bytes, headers: Headers) -> bool:
    return stands in target or any(stands in content or stands in (_basic(content) or b"") for _, content in headers)


def _filled(content: bytes, stands: bytes, value: bytes, encoded: dict[bytes, bytes]) -> bytes:
    user = _basic(content)
    if user is not None and stands in user:
        before, behind = base64.b64encode(user), base64.b64encode(user.replace(stands, value))
        encoded[behind] = encoded.pop(before, before)
        return b"Basic " + behind
    return content.replace(stands, value)


def _basic(content: bytes) -> bytes | None:
    """Return the user and the password of a header that has them, None for any other one."""
    match = _BASIC.fullmatch(content)
    if match is None:
        return None
    try:
        return base64.b64decode(match[1], validate=True)
    except binascii.Error:
        return None
