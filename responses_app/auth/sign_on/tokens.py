"""Whether an ID token is one of the provider's, made for this server and this sign-in; and who it says that it is.

Only signatures with a public key count. With a shared secret (HS256) whoever knows the client's secret, or has made the
server take a public key for one, could sign; and `none` is no signature.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jwt

from responses_app.auth.sign_on.provider import Claims
from responses_app.auth.sign_on.refusal import Reason, SignOnRefused
from responses_app.protocol.setting import KIB

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
# Kinds of public keys by the first letters of an algorithm. A shared secret (`oct`) is none.
KINDS = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
MAX_TOKEN = 64 * KIB  # characters
MAX_TRIES = 10  # keys of an algorithm, for a token that does not name its key
LEEWAY_SECONDS = 60  # by which clocks may differ
MAX_SUBJECT = 255  # characters: more than OpenID Connect allows
MAX_NAME = 150  # characters of a name or an address; no more is looked at
# What PyJWT lets through of what is nested too deep, or a number or a text where it must not be.
NO_JSON = (RecursionError, OverflowError, TypeError, ValueError, KeyError)
NEEDED = ["exp", "iat", "iss", "aud", "sub"]


def verified(token: object, keys: Sequence[object], *, issuer: str, client_id: str, nonce: object) -> Claims:
    """Return a token's claims. Raises `SignOnRefused`."""
    if not isinstance(token, str) or len(token) > MAX_TOKEN:
        raise SignOnRefused(Reason.TOKEN_MALFORMED)
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, *NO_JSON):
        raise SignOnRefused(Reason.TOKEN_MALFORMED) from None
    algorithm = header.get("alg")
    if algorithm not in ALGORITHMS:
        raise SignOnRefused(Reason.TOKEN_ALGORITHM, f"its alg is {str(algorithm)[:40]!r}")
    fitting = _fitting(keys, algorithm, header.get("kid"))
    for key in fitting[:MAX_TRIES]:
        claims = _signed_by(key, token, algorithm, issuer=issuer, client_id=client_id)
        if claims is not None:
            # A token that is made for several may be used by another one of them (`azp`).
            several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
            if claims.get("azp", None if several else client_id) != client_id:
                raise SignOnRefused(Reason.TOKEN_AUDIENCE, f"its azp is {str(claims.get('azp'))[:100]!r}")
            if not isinstance(nonce, str) or claims.get("nonce") != nonce:
                raise SignOnRefused(Reason.TOKEN_NONCE)
            return claims
    raise SignOnRefused(Reason.TOKEN_SIGNATURE, f"{len(fitting)} of the provider's {len(keys)} keys were tried")


def _fitting(keys: Sequence[object], algorithm: str, name: object) -> list[jwt.PyJWK]:
    """Return the keys that may have signed: of this kind, and with this name if the token has one."""
    found = []
    for each in keys:
        if not isinstance(each, dict) or each.get("kty") != KINDS[algorithm[:2]] or each.get("use", "sig") != "sig":
            continue
        if each.get("alg", algorithm) != algorithm or (name is not None and each.get("kid") != name):
            continue
        try:
            found.append(jwt.PyJWK(each, algorithm))
        except (jwt.PyJWTError, *NO_JSON):  # another curve, or what is not a key: the others may do
            continue
    return found


_REASONS: Sequence[tuple[type[jwt.PyJWTError], Reason]] = (
    (jwt.InvalidIssuerError, Reason.TOKEN_ISSUER),
    (jwt.InvalidAudienceError, Reason.TOKEN_AUDIENCE),
    (jwt.ExpiredSignatureError, Reason.TOKEN_TIME),
    (jwt.ImmatureSignatureError, Reason.TOKEN_TIME),
    (jwt.exceptions.InvalidSubjectError, Reason.SUBJECT_INVALID),
)


def _signed_by(key: jwt.PyJWK, token: str, algorithm: str, *, issuer: str, client_id: str) -> Claims | None:
    """Return the claims; None if this is not the key."""
    try:
        claims: Claims = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=client_id,
            issuer=issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": NEEDED},
        )
    except jwt.InvalidSignatureError:
        return None
    except jwt.PyJWTError as error:
        reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), Reason.TOKEN_MALFORMED)
        raise SignOnRefused(reason, str(error)[:200]) from None
    except NO_JSON as error:
        raise SignOnRefused(Reason.TOKEN_MALFORMED, type(error).__name__) from None
    return claims


@dataclass(frozen=True, slots=True)
class SignedInPerson:
    """Who signs in."""

    issuer: str
    subject: str  # with the issuer it means one person for ever; names and addresses change hands
    name: str  # for people to read
    email: str  # as the provider tells it; "" if it does not


def person_of(claims: Claims, issuer: str) -> SignedInPerson:
    """Return who the claims of a verified token name. Raises `SignOnRefused`."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT or not subject.isprintable():
        length = len(subject) if isinstance(subject, str) else 0
        raise SignOnRefused(Reason.SUBJECT_INVALID, f"it has {length} characters, of at most {MAX_SUBJECT}")
    email = _text(claims.get("email"))
    return SignedInPerson(
        issuer, subject, _text(claims.get("preferred_username")) or email or subject[:MAX_NAME], email
    )


def roles_of(claims: Claims, claim: str, roles: Mapping[str, str], *, who: str) -> frozenset[str]:
    """Return the roles of the groups in a claim. Raises `SignOnRefused` where there are none."""
    if claim not in claims:
        raise SignOnRefused(Reason.GROUPS_MISSING, f"the claims are {_names(claims)}", who=who)
    groups: Any = claims[claim]
    if isinstance(groups, str):  # as some providers send a single one
        groups = [groups]
    if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
        raise SignOnRefused(Reason.GROUPS_INVALID, f"it is a {type(groups).__name__}", who=who)
    found = frozenset(roles[group] for group in groups if group in roles)
    if not found:
        raise SignOnRefused(Reason.GROUPS_UNMAPPED, f"the groups are {_names(groups)}", who=who)
    return found


def _text(value: object) -> str:
    return value.strip()[:MAX_NAME] if isinstance(value, str) and value.isprintable() else ""


def _names(names: Any) -> str:
    """Return the first names as a line for the log."""
    return ", ".join(repr(str(name)[:60]) for name in list(names)[:20]) or "none"
