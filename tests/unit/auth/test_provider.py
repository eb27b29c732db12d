"""What the provider is asked for, by real requests to a forged one: away, slow, wrong, huge."""

import socket
from collections.abc import Iterator

import pytest

from responses_app.auth.sign_on import provider as provider_module
from responses_app.auth.sign_on.provider import MAX_ANSWER, WELL_KNOWN, Provider
from responses_app.auth.sign_on.refusal import Reason, SignOnRefused
from responses_app.auth.sign_on.settings import SignOnSettings
from tests.kit.forged_provider import CLIENT_ID, SECRET, ForgedProvider, Handler

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
