"""ID tokens: whose count, and what roles their groups give."""

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from responses_app.auth.sign_on.refusal import Reason, SignOnRefused
from responses_app.auth.sign_on.tokens import MAX_SUBJECT, MAX_TOKEN, person_of, roles_of, verified
from tests.kit.forged_provider import CLIENT_ID, SECRET, claims_for, jwk_of, rsa_key, signed

ISSUER, NONCE = "https://login.example.com", "n-1"


def check(token: object, keys: list[Any] | None = None, nonce: object = NONCE) -> Any:
    keys = [jwk_of()] if keys is None else keys
    return verified(token, keys, issuer=ISSUER, client_id=CLIENT_ID, nonce=nonce)


def reason_for(token: object, keys: list[Any] | None = None, nonce: object = NONCE) -> Reason:
    with pytest.raises(SignOnRefused) as raised:
        check(token, keys, nonce)
    return raised.value.reason


def right(**changed: object) -> dict[str, Any]:
    return claims_for(ISSUER, NONCE, **changed)


def by_hand(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def test_a_right_token_is_taken() -> None:
    assert check(signed(right()))["sub"] == "7"
    assert check(signed(right(aud=[CLIENT_ID])))["sub"] == "7"
    assert check(signed(right(aud=[CLIENT_ID, "other"], azp=CLIENT_ID)))["sub"] == "7"
    assert check(signed(right(), algorithm="PS512"))["sub"] == "7"
    # With no key named, each of its kind is tried; keys that cannot be used are passed over.
    useless = [None, {}, {"kty": "RSA"}, {"kty": "RSA", "n": 1, "e": []}, jwk_of("k3", use="enc")]
    assert check(signed(right(), kid=None), [*useless, jwk_of("k2"), jwk_of()])["sub"] == "7"


def test_a_token_by_elliptic_curve_is_taken_with_its_curve() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    jwk = {**jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "e"}
    token = jwt.encode(right(), key, "ES256", headers={"kid": "e"})
    assert check(token, [jwk])["sub"] == "7"
    assert reason_for(token, [{**jwk, "crv": "P-384"}]) == Reason.TOKEN_SIGNATURE


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "another"}, Reason.TOKEN_AUDIENCE),
        ({"aud": ["another"]}, Reason.TOKEN_AUDIENCE),
        ({"aud": [CLIENT_ID, "another"]}, Reason.TOKEN_AUDIENCE),  # no word of who may use it
        ({"azp": "another"}, Reason.TOKEN_AUDIENCE),
        ({"aud": 7}, Reason.TOKEN_AUDIENCE),
        ({"iss": "https://login.example.org"}, Reason.TOKEN_ISSUER),
        ({"iss": f"{ISSUER}/"}, Reason.TOKEN_ISSUER),
        ({"exp": 1}, Reason.TOKEN_TIME),
        ({"iat": 2**40}, Reason.TOKEN_TIME),
        ({"nbf": 2**40}, Reason.TOKEN_TIME),
        ({"nonce": "another"}, Reason.TOKEN_NONCE),
        ({"nonce": None}, Reason.TOKEN_NONCE),
        *[({name: None}, Reason.TOKEN_MALFORMED) for name in ("exp", "iat", "sub", "iss", "aud")],
        ({"exp": "soon"}, Reason.TOKEN_MALFORMED),
        ({"exp": float("inf")}, Reason.TOKEN_MALFORMED),
        ({"sub": 7}, Reason.SUBJECT_INVALID),
    ],
)
def test_claims_that_do_not_hold(claims: dict[str, Any], reason: Reason) -> None:
    assert reason_for(signed(right(**claims))) == reason


def test_a_sign_in_without_a_nonce_takes_no_token_without_one() -> None:
    assert reason_for(signed(right(nonce=None)), nonce=None) == Reason.TOKEN_NONCE


def test_another_key_is_none() -> None:
    forged = signed(right(), "k2", kid="k1")
    assert reason_for(forged) == Reason.TOKEN_SIGNATURE
    assert reason_for(signed(right(), "k2")) == Reason.TOKEN_SIGNATURE
    assert reason_for(signed(right()), []) == Reason.TOKEN_SIGNATURE
    for other in ({"alg": "RS512"}, {"use": "enc"}):
        assert reason_for(signed(right()), [jwk_of(**other)]) == Reason.TOKEN_SIGNATURE


def test_no_signature_and_shared_secrets_are_none() -> None:
    for algorithm in ("none", "None", "NONE", "", None, 7, ["RS256"]):
        token = by_hand({"alg": algorithm, "kid": "k1"}, right())
        assert reason_for(token) in (Reason.TOKEN_ALGORITHM, Reason.TOKEN_MALFORMED)
    # Whoever has the public key of the provider could use it as a secret, where HS256 was taken.
    public = rsa_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for secret in (public.hex(), SECRET * 3):
        token = jwt.encode(right(), secret, "HS256", headers={"kid": "k1"})
        shared = {"kty": "oct", "kid": "k1", "k": base64.urlsafe_b64encode(secret.encode()).decode()}
        assert reason_for(token, [jwk_of(), shared]) == Reason.TOKEN_ALGORITHM
        _, *rest = token.split(".")
        changed = base64.urlsafe_b64encode(b'{"alg":"RS256","kid":"k1"}').decode().rstrip("=")
        assert reason_for(".".join((changed, *rest)), [shared]) == Reason.TOKEN_SIGNATURE


@pytest.mark.parametrize(
    "token", [None, 7, {}, "", "a", "a.b.c", "..", "\ud800", "é.é.é", "x" * (MAX_TOKEN + 1), by_hand({}, {})]
)
def test_what_is_no_token(token: object) -> None:
    assert reason_for(token) in (Reason.TOKEN_MALFORMED, Reason.TOKEN_ALGORITHM)


def test_a_token_that_is_nested_too_deep() -> None:
    deep = base64.urlsafe_b64encode(b'{"alg":"RS256","a":' + b"[" * 40_000).decode().rstrip("=")
    assert reason_for(f"{deep}.e30.e30") == Reason.TOKEN_MALFORMED


@pytest.mark.parametrize("subject", ["", "x" * (MAX_SUBJECT + 1), "x" * 10_240, "a\nb", 7, None])
def test_a_subject_that_is_none(subject: object) -> None:
    with pytest.raises(SignOnRefused) as raised:
        person_of({"sub": subject}, ISSUER)
    assert raised.value.reason == Reason.SUBJECT_INVALID
    assert "xxx" not in str(raised.value)


def test_who_somebody_is() -> None:
    whole = person_of({"sub": "7", "preferred_username": " ana ", "email": "a@example.com"}, ISSUER)
    assert (whole.subject, whole.name, whole.email) == ("7", "ana", "a@example.com")
    bare = person_of({"sub": "7", "preferred_username": 3, "email": "a\nb"}, ISSUER)
    assert (bare.name, bare.email) == ("7", "")


def test_groups_give_roles() -> None:
    roles = {"ops": "operator", "all": "viewer", "sec": "auditor"}

    def found(groups: object) -> object:
        return roles_of({"groups": groups}, "groups", roles, who="ana")

    assert found(["ops", "all", "others"]) == {"operator", "viewer"}
    assert found("sec") == {"auditor"}
    wrong = {Reason.GROUPS_INVALID: [7, None, {"ops": 1}, ["ops", 7], [["ops"]]], Reason.GROUPS_UNMAPPED: [[], ["Ops"]]}
    for reason, values in wrong.items():
        for value in values:
            with pytest.raises(SignOnRefused) as raised:
                found(value)
            assert (raised.value.reason, raised.value.who) == (reason, "ana"), value
    with pytest.raises(SignOnRefused) as raised:
        roles_of({}, "groups", roles, who="ana")
    assert raised.value.reason == Reason.GROUPS_MISSING
