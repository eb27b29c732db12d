"""`Sealer`: what a client carries for this server and may neither read nor change, such as a compaction's summary.

An envelope is base64url of: version, key id (4 bytes), nonce (12 bytes), and the content under AES-256-GCM. Purpose and
project are authenticated with it, so what one project was given opens in no other, and for nothing else. Keys are made
of secrets with HKDF-SHA256; the first secret seals, all of them open, so a new one can be put in front.

There are two ways to seal, and an envelope's version says which one made it:

1  `seal`: a random nonce, the content compressed. Each envelope is another one.
2  `seal_again`, which is deterministic: the nonce is a keyed digest of all that is sealed and of where it belongs (a
   response, an item), and the content stays as it is. So every worker that makes a response again of its log makes the
   same envelopes.

Why the second is safe. GCM breaks where one key seals two contents under one nonce. The nonce here is 96 bits of
BLAKE2b under a key that is used for nothing else, over purpose, project, place and content, each behind its length. Two
different contents have different digests, but for a collision, which is as likely as one of two random nonces: so the
rule "at most 2^32 envelopes a key" holds for both ways, and for both together. What is the same gives the same
envelope, which says only that it is the same, and the place in the digest leaves that to what one item of one response
holds. Nothing is compressed, since another build of zlib would give other bytes.

With another first secret the same content gives another envelope. So a stream that is read again after a rotation has
the numbers, ids and texts that it had, and envelopes of the new key; both open as long as the old secret is kept.
"""

import base64
import zlib
from collections.abc import Callable, Sequence
from hashlib import blake2b

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

MAX_BYTES = 4 * 1024 * 1024  # of content, before it is compressed

_COMPRESSED, _PLAIN = b"\x01", b"\x02"  # versions
_ID, _NONCE, _KEY = 4, 12, 32  # bytes; AES-256 has a key of 32, GCM a nonce of 12
_HEADER = 1 + _ID + _NONCE
_MAX_ENVELOPE = 6 * 1024 * 1024  # characters; incompressible content of MAX_BYTES takes less


class SealBroken(Exception):
    """What should be opened was not sealed here, for this purpose and project, or was changed since."""


class Sealer:
    """Seals and opens. `random_bytes(n)` returns n bytes that nobody can guess."""

    def __init__(self, secrets: Sequence[str], *, random_bytes: Callable[[int], bytes]) -> None:
        if not secrets:
            raise ValueError("a sealer needs a secret")
        made = [_key(secret) for secret in secrets]
        self._first_id, _, self._nonce_key = made[0]
        # Reversed: where two secrets had one key id, the earlier one would count, as it does when sealing.
        self._keys = {key_id: key for key_id, key, _ in reversed(made)}
        self._random_bytes = random_bytes

    def seal(self, purpose: str, project: str, data: bytes) -> str:
        """Return an envelope. Raises `ValueError` for content over `MAX_BYTES`."""
        _check_size(data)
        return self._sealed(_COMPRESSED, self._random_bytes(_NONCE), (purpose, project), zlib.compress(data))

    def seal_again(self, purpose: str, project: str, data: bytes, *, place: str) -> str:
        """Return an envelope, always the same one for the same content in the same `place`, such as an item's id.

        Raises `ValueError` for content over `MAX_BYTES`.
        """
        _check_size(data)
        told_apart = _apart(purpose.encode(), project.encode(), place.encode(), data)
        nonce = blake2b(told_apart, key=self._nonce_key, digest_size=_NONCE).digest()
        return self._sealed(_PLAIN, nonce, (purpose, project), data)

    def _sealed(self, version: bytes, nonce: bytes, bound_to: tuple[str, str], data: bytes) -> str:
        header = version + self._first_id + nonce
        sealed = self._keys[self._first_id].encrypt(nonce, data, _bound_to(header, *bound_to))
        return base64.urlsafe_b64encode(header + sealed).decode().rstrip("=")

    def open(self, purpose: str, project: str, envelope: str) -> bytes:
        """Return the content of an envelope. Raises `SealBroken`."""
        raw = _decoded(envelope)
        header, sealed = raw[:_HEADER], raw[_HEADER:]
        # What is cut has a short key id or nonce: no key has the one, and the other raises `ValueError`.
        key = self._keys.get(header[1 : 1 + _ID])
        if header[:1] not in (_COMPRESSED, _PLAIN) or key is None:
            raise SealBroken("it has another version, or an unknown key")
        try:
            # The version is authenticated with the header: an envelope of one way cannot be passed off as the other's.
            opened = key.decrypt(header[-_NONCE:], sealed, _bound_to(header, purpose, project))
        except (InvalidTag, ValueError) as error:
            raise SealBroken("it is changed, or meant for another project") from error
        return opened if header[:1] == _PLAIN else _decompressed(opened)


def _key(secret: str) -> tuple[bytes, AESGCM, bytes]:
    """Return a secret's key id, its key, and the key of the nonces that are made of content."""
    made = [
        HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(secret.encode())
        # Key id and key come from one derivation: the id tells nothing of the key.
        for length, info in ((_ID + _KEY, b"respsite sealing 1"), (_KEY, b"respsite sealing 2: nonces"))
    ]
    return made[0][:_ID], AESGCM(made[0][_ID:]), made[1]


def _check_size(data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise ValueError(f"{len(data)} bytes are too much to be sealed")


def _bound_to(header: bytes, purpose: str, project: str) -> bytes:
    """Return the bytes that are authenticated beside the content."""
    return _apart(header, purpose.encode(), project.encode())


def _apart(*parts: bytes) -> bytes:
    """Join parts, each behind its length: other parts give other bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _decoded(envelope: str) -> bytes:
    """Read base64url, in its one spelling: a text that differs in a bit that says nothing is changed, too."""
    if len(envelope) > _MAX_ENVELOPE:
        raise SealBroken("it is too long")
    try:
        raw = base64.urlsafe_b64decode(envelope.encode("ascii") + b"=" * (-len(envelope) % 4))
    except ValueError as error:
        raise SealBroken("it is not base64url") from error
    if base64.urlsafe_b64encode(raw).decode().rstrip("=") != envelope:
        raise SealBroken("it is not base64url")
    return raw


def _decompressed(compressed: bytes) -> bytes:
    reader = zlib.decompressobj()
    try:
        # One byte more than may be: so a bomb of zeros is noticed, and never unpacked whole.
        data = reader.decompress(compressed, MAX_BYTES + 1)
    except zlib.error as error:
        raise SealBroken("its content is damaged") from error
    if len(data) > MAX_BYTES or not reader.eof:
        raise SealBroken("its content is too large")
    return data
