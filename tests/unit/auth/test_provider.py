"""The provider of sign-on, away, slow, wrong or huge; and whose ID tokens count, with which roles."""

import base64
import json
import socket
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from responses_app.auth.sign_on import provider as provider_module
from responses_app.auth.sign_on.provider import MAX_ANSWER, WELL_KNOWN, Provider
from responses_app.auth.sign_on.refusal import Reason, SignOnRefused
from responses_app.auth.sign_on.settings import SignOnSettings
from responses_app.auth.sign_on.tokens import MAX_SUBJECT, MAX_TOKEN, person_of, roles_of, verified
from tests.kit.forged_provider import CLIENT_ID, SECRET, ForgedProvider, Handler, claims_for, jwk_of, rsa_key, signed

FORM = {"client_id": CLIENT_ID, "client_secret": SECRET, "grant_type": "authorization_code", "code": "c"}


@pytest.fixture(scope="module")
def forged_once() -> Iterator[ForgedProvider]:
    with ForgedProvider() as forged:
        yield forged


@pytest.fixture
def forged(forged_once: ForgedProvider) -> ForgedProvider:
    forged_once.reset()
    return forged_once


def asking(issuer: str) -> Provider:
    return Provider(SignOnSettings(oidc_issuer=issuer))


async def reason_of(provider: Provider) -> Reason:
    with pytest.raises(SignOnRefused) as raised:
        await provider.endpoints()
    assert SECRET not in str(raised.value)
    return raised.value.reason


def raw(sent: bytes) -> "provider_module.Any":
    def answer(handler: Handler) -> None:
        handler.wfile.write(sent)
        handler.close_connection = True

    return answer


async def test_its_endpoints_are_asked_for_once_in_a_while(
    forged: ForgedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = asking(f"{forged.issuer}/")
    for _ in range(3):
        assert (await provider.endpoints()).token == f"{forged.issuer}/token"
    assert forged.asked == [WELL_KNOWN]
    monkeypatch.setattr(provider_module, "FRESH_SECONDS", 0.0)
    forged.document = {"userinfo_endpoint": None, "end_session_endpoint": None}
    found = await provider.endpoints()
    assert (found.userinfo, found.end_session) == ("", "")
    assert await provider.userinfo("access") == {}


async def test_a_provider_that_comes_back_is_found(forged: ForgedProvider) -> None:
    provider = asking(forged.issuer)
    forged.answers[WELL_KNOWN] = lambda handler: handler.send({}, 503)
    assert await reason_of(provider) == Reason.PROVIDER_AWAY
    forged.answers = {}
    assert (await provider.endpoints()).issuer == forged.issuer
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert await reason_of(asking(f"http://127.0.0.1:{nobody.getsockname()[1]}")) == Reason.PROVIDER_AWAY


async def test_a_provider_that_hangs_is_not_waited_for(forged: ForgedProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "SECONDS", 0.2)
    forged.answers[WELL_KNOWN] = lambda handler: print(forged.released.wait(60))
    assert await reason_of(asking(forged.issuer)) == Reason.PROVIDER_AWAY

    def drips(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not forged.released.wait(0.02):
            handler.wfile.write(b" ")
            handler.wfile.flush()

    forged.answers[WELL_KNOWN] = drips
    assert await reason_of(asking(forged.issuer)) == Reason.PROVIDER_AWAY


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'"a"', b"null", b"{", b"\xff\xfe", b"[" * 100_000, b"{}"], ids=range(9)
)
async def test_a_provider_that_talks_nonsense(forged: ForgedProvider, body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    forged.answers[WELL_KNOWN] = raw(head + body)
    assert await reason_of(asking(forged.issuer)) == Reason.PROVIDER_INVALID


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"])
async def test_a_provider_that_does_not_talk_http(forged: ForgedProvider, sent: bytes) -> None:
    forged.answers[WELL_KNOWN] = raw(sent)
    assert await reason_of(asking(forged.issuer)) == Reason.PROVIDER_AWAY


async def test_a_provider_that_talks_too_much(forged: ForgedProvider) -> None:
    def endless(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        try:
            while not forged.released.is_set():
                handler.wfile.write(b" " * MAX_ANSWER)
        except OSError:  # nobody listens any more
            handler.close_connection = True

    forged.answers[WELL_KNOWN] = endless
    assert await reason_of(asking(forged.issuer)) == Reason.PROVIDER_INVALID


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "http://127.0.0.1:1"},
        {"issuer": None},
        {"token_endpoint": None},
        {"token_endpoint": "http://login.example.com/token"},  # a secret would go there in plain text
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": "//example.com"},
        {"jwks_uri": 7},
        {"jwks_uri": "file:///etc/passwd"},
        {"end_session_endpoint": "https://a b/"},
        {"userinfo_endpoint": "https://u:p@example.com/"},
    ],
)
async def test_a_provider_that_says_wrong_things_of_itself(forged: ForgedProvider, document: dict[str, object]) -> None:
    forged.document = document
    assert await reason_of(asking(forged.issuer)) == Reason.PROVIDER_INVALID


async def test_redirects_are_not_followed(forged: ForgedProvider) -> None:
    forged.answers[WELL_KNOWN] = lambda handler: handler.send({}, 302, Location=f"{forged.issuer}/keys")
    assert await reason_of(asking(forged.issuer)) == Reason.PROVIDER_INVALID
    assert forged.asked == [WELL_KNOWN]


async def test_a_code_that_it_refuses_and_keys_that_are_none(forged: ForgedProvider) -> None:
    provider = asking(forged.issuer)
    with pytest.raises(SignOnRefused) as raised:
        await provider.tokens(FORM)
    assert raised.value.reason == Reason.CODE_REFUSED
    assert SECRET not in str(raised.value)
    forged.answers["/keys"] = lambda handler: handler.send({"keys": {}})
    with pytest.raises(SignOnRefused) as raised:
        await provider.keys()
    assert raised.value.reason == Reason.PROVIDER_INVALID


@pytest.mark.parametrize("ways", [None, ["client_secret_post"], ["client_secret_basic"], "client_secret_post"])
async def test_the_secret_goes_as_the_provider_takes_it(forged: ForgedProvider, ways: object) -> None:
    seen: list[str] = []

    def look(handler: Handler) -> None:
        seen.append(handler.headers.get("authorization", "in the form"))
        handler.send({})

    forged.document = {"token_endpoint_auth_methods_supported": ways}
    forged.answers["/token"] = look
    await asking(forged.issuer).tokens(FORM)
    in_form = ways == ["client_secret_post"]
    assert (seen[0] == "in the form") is in_form
    assert in_form or seen[0].startswith("Basic ")


async def test_not_too_many_are_asked_for_at_once(forged: ForgedProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "MAX_AT_ONCE", 0)
    assert await reason_of(asking(forged.issuer)) == Reason.PROVIDER_BUSY


@pytest.mark.parametrize("promise", [None, False, "true", True])
async def test_who_sends_somebody_back_is_who_was_asked(forged: ForgedProvider, promise: object) -> None:
    forged.document = {"authorization_response_iss_parameter_supported": promise}
    endpoints = await asking(forged.issuer).endpoints()
    right = [[forged.issuer], [forged.issuer] * 2, *([] if promise is True else [[]])]
    for named in right:
        endpoints.check_sender(named)
    foreign = [["https://a"], [""], [f"{forged.issuer}/"], [forged.issuer, "https://a"]]
    for named in [*foreign, *([[]] if promise is True else [])]:
        with pytest.raises(SignOnRefused) as refused:
            endpoints.check_sender(named)
        assert refused.value.reason is Reason.ISSUER_FOREIGN


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
