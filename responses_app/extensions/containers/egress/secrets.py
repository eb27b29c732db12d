"""Secrets of a container's domains: what stands for them inside, and where the values take its place.

Inside, the variable of a secret holds a text that nobody can guess. The proxy puts the value there where it stands in
the target or in the headers of a request to the secret's domain, also inside of `Authorization: Basic …`. It does not
in bodies: what is sent there is often published by whoever gets it, and the model could read the value then.

`Mask` does the contrary with what comes back: a host may answer with what it was sent. A host that answers with
a value in a form that is not known there tells it: an allowed domain is trusted so far.
"""

import base64
import binascii
import re
import secrets as randomness
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote

from responses_app.extensions.containers.egress.policy import EgressPolicy

PREFIX = "respsite-secret-"
KEPT_VALUES = 4  # of each secret: values that were given before may still come back
_BASIC = re.compile(rb"basic +([A-Za-z0-9+/=]+) *", re.IGNORECASE)

Headers = Sequence[tuple[bytes, bytes]]


class SecretLost(Exception):
    """A request has the placeholder of a secret whose value is not known any more; the text is its name."""


class SecretExposed(Exception):
    """A request that others could read has the placeholder of a secret; the text is its name."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The head of a request, with values in it."""

    target: bytes = field(repr=False)
    headers: Headers = field(repr=False)
    # What was put in besides the values themselves, and what stood there: it is to be masked, too.
    encoded: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)


class Placeholders:
    """The placeholders of one container's secrets, for as long as that lives in memory."""

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
            in_headers = any(stands in content or stands in (_basic(content) or b"") for _, content in headers)
            if stands not in target and not in_headers:
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
        """Return a mask of all values of a container, also of those that it had before."""
        for secret in policy.secrets:
            if secret.value is not None:
                self._values.pop(secret.value, None)
                self._values[secret.value] = self.by_name[secret.name].encode()
        while len(self._values) > self._most:
            del self._values[next(iter(self._values))]
        placeholders = {form: stands for value, stands in self._values.items() for form in forms_of(value)}
        return Mask({**placeholders, **encoded})


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


_ESCAPE = re.compile(
    rb"%([0-9A-Fa-f]{2})|\\u00([0-9A-Fa-f]{2})|\\x([0-9A-Fa-f]{2})|&#[xX]0{0,4}([0-9A-Fa-f]{2});"  # by its number
    rb"|&#0{0,4}([0-9]{2,3});|&(amp|lt|gt|quot|apos);|\\([\"'\\/])"
)
_NAMED = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}
_HEXADECIMAL, _DECIMAL, _NAME = range(1, 5), 5, 6  # groups of `_ESCAPE`
# Bytes that one byte has at most where it is escaped.
_LONGEST_ESCAPE = 10
# What a text consists of that waits; and what else there is in the values, which is little.
_OF_TOKENS = bytes(each for each in range(0x21, 0x7F) if each not in b"\"'()<>[]{},")
_HEAD = 64  # bytes of a value that are searched for first; the rest is compared where they are found
# Heads in one piece that no whole value begins with. Only texts that repeat themselves every few bytes have more: of
# them nothing is told.
_MOST_MISSES = 4096

Span = tuple[int, int, bytes]  # begin, end, and what takes its place


def forms_of(value: str) -> Iterator[bytes]:
    """Yield the texts by which a value is found in an answer whose escapes are undone."""
    content = value.encode()
    yield content
    yield content.replace(b" ", b"+")
    for before in range(3):
        # Of the three bytes that four characters stand for, so many are another text's: those characters are left out.
        encoded = base64.b64encode(bytes(before) + content)
        encoded = encoded[(0, 2, 3)[before] : (before + len(content)) * 8 // 6]
        yield encoded
        yield encoded.translate(bytes.maketrans(b"+/", b"-_"))
    yield content.hex().encode()
    yield content.hex().upper().encode()


class Mask:
    r"""Takes the values of secrets out of what comes back, and puts there what stands for them.

    A host may answer with what it was sent. A value is found as it is, and in each form that servers usually give to
    text:

        URLs      %2F, %2f, + for a space         HTML    &amp; &#39; &#x27;
        JSON      \/ \" \u0026                    hex     of the whole value, in small or large letters
        base64    of any text that has the value in it, also with - and _: three forms, by where the value begins

    Escapes are undone first, so it does not matter which characters are escaped.

    What comes is told as it comes, but for the end: that may be the beginning of a value. How much of it waits must not
    depend on the value, or code inside could find that out: it would have a host send the beginning of a guess, and see
    whether it comes at once. So what waits is all that could be in any token: back to a space, a quotation mark, a
    bracket or the end of a line.

    Every search takes a time that grows with the length of the text alone, whatever the values are: who chooses them
    may choose the answers, too, and everybody's containers wait meanwhile. `_MOST_MISSES` is for that.
    """

    def __init__(self, found: Mapping[bytes, bytes]) -> None:
        self._found = [(each, each[:_HEAD], stands) for each, stands in found.items()]
        self._held = b""  # the end of what came, which may be the beginning of one of them
        self._waits = _OF_TOKENS + bytes(set(b"".join(each.translate(None, _OF_TOKENS) for each in found)))
        self._most = _LONGEST_ESCAPE * max(map(len, found), default=0)

    def whole(self, content: bytes) -> bytes:
        """Return a content without them."""
        if not self._found:
            return content
        return _replaced(content, self._spans(_Unescaped(content)), len(content))

    def add(self, content: bytes) -> bytes:
        """Take more of a stream, and return the part of it that can be passed on by now."""
        if not self._found:
            return content
        content = self._held + content
        spans = self._spans(_Unescaped(content))
        end = max(len(content.rstrip(self._waits)), len(content) - self._most)
        # Where a whole one stands across that place, it goes on behind it.
        for start, behind, _ in spans:
            if start < end < behind:
                end = behind
        self._held = content[end:]
        return _replaced(content, spans, end)

    def end(self) -> bytes:
        """Return the rest."""
        content, self._held = self._held, b""
        return self.whole(content)

    def _spans(self, unescaped: "_Unescaped") -> Sequence[Span]:
        """Return where they stand, first ones first, and the longest of those that begin together."""
        try:
            spans, raw_of = self._spans_in(unescaped.content), unescaped.raw_of
            if unescaped.has_any:
                spans += [(raw_of(start), raw_of(end), text) for start, end, text in self._spans_in(unescaped.text)]
        except _TooManyMisses as problem:
            return [(0, len(unescaped.content), problem.stands)]
        return sorted(spans, key=lambda span: (span[0], -span[1]))

    def _spans_in(self, text: bytes) -> list[Span]:
        spans, misses = [], 0
        for each, head, stands in self._found:
            place = text.find(head)
            while place >= 0:
                if text.startswith(each, place):
                    spans.append((place, place + len(each), stands))
                    place += len(each)
                else:
                    place, misses = place + 1, misses + 1
                    if misses > _MOST_MISSES:
                        raise _TooManyMisses(stands)
                place = text.find(head, place)
        return spans


class _TooManyMisses(Exception):
    """A text is made for searches to take long; `stands` is put in the place of all of it."""

    def __init__(self, stands: bytes) -> None:
        super().__init__()
        self.stands = stands


def _replaced(content: bytes, spans: Sequence[Span], end: int) -> bytes:
    """Return a content up to a place, with other texts in these places; whatever overlaps one is left out, too."""
    parts, place = [], 0
    for start, behind, stands in spans:
        if place <= start < end:
            parts += [content[place:start], stands]
        if start < end:
            place = max(place, behind)
    return b"".join([*parts, content[place:end]])


class _Unescaped:
    """A text whose escapes are undone, and which of its places stand where in the text as it came."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        parts: list[bytes] = []
        self._places = [0]  # where a part begins, in `text`
        self._raw = [0]  # and where it does so in what came
        length = behind = 0
        for match in _ESCAPE.finditer(content):
            start = match.start()
            if start > behind:
                parts.append(content[behind:start])
                length += start - behind
                self._places.append(length)
                self._raw.append(start)
            behind = match.end()
            parts.append(_meant(match[0]))
            length += 1
            self._places.append(length)
            self._raw.append(behind)
        self.has_any = bool(parts)
        self.text = b"".join([*parts, content[behind:]])

    def raw_of(self, place: int) -> int:
        """Return the place in `content` of a place in `text`."""
        # Of an escape, which is one byte of `text`, nothing is added.
        part = bisect_right(self._places, place) - 1
        return self._raw[part] + place - self._places[part]


@lru_cache(4096)
def _meant(escape: bytes) -> bytes:
    """Return the byte that an escape stands for; a `?` for a character that is none of ASCII."""
    match = _ESCAPE.fullmatch(escape)
    assert match is not None
    for group in _HEXADECIMAL:
        if match[group] is not None:
            return bytes((int(match[group], 16),))
    if match[_DECIMAL] is not None:
        number = int(match[_DECIMAL])
        return bytes((number,)) if number < 128 else b"?"
    return _NAMED[match[_NAME]] if match[_NAME] is not None else match[_NAME + 1]
