"""Secrets of a container's domains: what stands for them inside, and where the values take its place.

Inside, the variable of a secret holds a text that nobody can guess. The proxy puts the value there where it stands in
the target or in the headers of a request to the secret's domain, also inside of `Authorization: Basic …`. It does not
in bodies: what is sent there is often published by whoever gets it, and the model could read the value then.

`Mask` does the contrary with what comes back: a host may answer with what it was sent. It finds a value as it is, and
as URLs and JSON write it. A host that answers with it in another form tells it: an allowed domain is trusted so far.
"""

import base64
import binascii
import json
import re
import secrets as randomness
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, quote_plus

from responses_app.tools.egress.policy import EgressPolicy

PREFIX = "respsite-secret-"
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
        """Return what takes all values of a container out of what it is sent."""
        found = dict(encoded)
        for secret in policy.secrets:
            if secret.value is not None:
                stands = self.by_name[secret.name].encode()
                found |= dict.fromkeys(_forms(secret.value), stands)
        return Mask(found)


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


def _forms(value: str) -> Iterable[bytes]:
    """Return a value as answers may have it: as it is, in a URL, in JSON, in JSON that escapes slashes."""
    in_json = json.dumps(value)[1:-1]
    forms = (value, quote(value), quote(value, safe=""), quote_plus(value), in_json, in_json.replace("/", "\\/"))
    return [each.encode() for each in dict.fromkeys(forms)]


class Mask:
    """Replaces texts in a stream of bytes."""

    def __init__(self, found: Mapping[bytes, bytes]) -> None:
        self._found = found
        longest_first = sorted(found, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first))) if found else None
        self._first = {each[:1] for each in found}
        self._longest = max(map(len, found), default=0)
        self._held = b""  # the end of what came, which may be the beginning of one of them

    def whole(self, content: bytes) -> bytes:
        """Return a content without them."""
        return self._pattern.sub(lambda match: self._found[match[0]], content) if self._pattern else content

    def add(self, content: bytes) -> bytes:
        """Take more of a stream, and return what can be told of it by now."""
        if self._pattern is None:
            return content
        content = self._held + content
        begin = self._begins(content)
        # Where a whole one stands across that place, it goes on behind it.
        for match in self._pattern.finditer(content):
            if match.start() < begin < match.end():
                begin = match.end()
        self._held = content[begin:]
        return self.whole(content[:begin])

    def end(self) -> bytes:
        """Return the rest."""
        content, self._held = self._held, b""
        return self.whole(content)

    def _begins(self, content: bytes) -> int:
        """Return from where on the end of a content may be the beginning of one of them."""
        for place in range(max(0, len(content) - self._longest + 1), len(content)):
            if content[place : place + 1] in self._first:
                tail = content[place:]
                if any(len(each) > len(tail) and each.startswith(tail) for each in self._found):
                    return place
        return len(content)
