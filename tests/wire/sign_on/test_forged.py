"""What a provider, or somebody in between, may send back: each lie is a page, an entry of the trail, and no session."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from websockets.sync.client import connect

from responses_app.auth import door
from tests.kit.closed import ClosedServer
from tests.kit.forged_provider import CLIENT_ID, SECRET, ForgedProvider, claims_for, signed
from tests.kit.people import NAME, PASSWORD, in_the_database, log_in, token
from tests.kit.stored import stored

START, BACK = "/oidc/authenticate/", "/oidc/callback/"
PASS = {"Respsite-Session": "default"}
WELL_KNOWN = "/.well-known/openid-configuration"


@pytest.fixture(scope="module")
def forged_once() -> Iterator[ForgedProvider]:
    with ForgedProvider() as forged:
        yield forged


def settings_for(forged: ForgedProvider) -> dict[str, str]:
    return {
        "oidc_issuer": forged.issuer,
        "oidc_client_id": CLIENT_ID,
        "oidc_client_secret": SECRET,
        "oidc_name": "Example <ID>",
        "oidc_roles": json.dumps({"ops": "admin", "people": "viewer"}),
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, forged_once: ForgedProvider) -> Iterator[ClosedServer]:
    with ClosedServer(tmp_path_factory.mktemp("forged"), auth="on", **settings_for(forged_once)) as server:
        in_the_database(server, "User.objects.filter(username='root').update(email='root@example.com')")
        yield server
        assert "Traceback" not in server.output
        assert SECRET not in server.output


@pytest.fixture
def forged(forged_once: ForgedProvider) -> ForgedProvider:
    forged_once.reset()
    return forged_once


@pytest.fixture
def person(server: ClosedServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as person:
        yield person


def begun(person: httpx.Client, forged: ForgedProvider, **query: str) -> dict[str, str]:
    """Begin, and return what the provider would send the browser back with."""
    answer = person.get(START, params=query)
    assert answer.status_code == 302, answer.text
    assert answer.headers["location"].startswith(f"{forged.issuer}/authorize?")
    return forged.sent(answer.headers["location"])


def signed_in(person: httpx.Client, forged: ForgedProvider, **query: str) -> httpx.Response:
    return person.get(BACK, params=begun(person, forged, **query))


def is_in(person: httpx.Client) -> bool:
    answers = {person.get("/admin/all/").status_code, person.get("/v1/models", headers=PASS).status_code}
    assert answers in ({200}, {302, 401})
    return answers == {200}


def failures(server: ClosedServer) -> list[tuple[str, str]]:
    """Return whom, and why, was refused."""
    rows = stored(
        server, "SELECT subject, detail FROM responses_app_auditrow WHERE action = 'sign_in_failed' ORDER BY number"
    )
    return [(subject, json.loads(detail).get("reason", "")) for subject, detail in rows]


def users(server: ClosedServer) -> dict[str, tuple[bool, set[str]]]:
    """Return whether each user is of the staff, and the groups."""
    rows = stored(
        server,
        "SELECT u.username, u.is_staff, g.name FROM auth_user u LEFT JOIN auth_user_groups m ON m.user_id = u.id "
        "LEFT JOIN auth_group g ON g.id = m.group_id",
    )
    found: dict[str, tuple[bool, set[str]]] = {}
    for name, staff, group in rows:
        found.setdefault(name, (bool(staff), set()))[1].update({group} - {None})
    return found


def test_who_is_in_a_group_comes_in(server: ClosedServer, forged: ForgedProvider, person: httpx.Client) -> None:
    page = person.get("/admin/login/?next=/watch/rollouts")
    assert "Sign in with Example &lt;ID&gt;" in page.text
    assert 'href="/oidc/authenticate/?next=%2Fwatch%2Frollouts"' in page.text
    answer = signed_in(person, forged, next="/watch/rollouts")
    assert (answer.status_code, answer.headers["location"]) == (302, "/watch/rollouts")
    assert is_in(person)
    entries = stored(server, "SELECT action, actor_name, detail FROM responses_app_auditrow ORDER BY number")
    assert ("signed_in", "ana", '{"by":"single sign-on"}') in entries
    changed = "SELECT detail FROM responses_app_auditrow WHERE action = 'roles_changed' AND subject = 'ana'"
    [(detail,)] = stored(server, changed)
    assert json.loads(detail) == {"roles": ["admin"], "before": [], "address": "127.0.0.1"}


@pytest.mark.parametrize(
    ("claims", "status", "reason"),
    [
        ({"aud": "another"}, 403, "token_audience"),
        ({"azp": "another"}, 403, "token_audience"),
        ({"iss": "https://login.example.org"}, 403, "token_issuer"),
        ({"exp": 1}, 403, "token_time"),
        ({"nonce": "of another sign-in"}, 403, "token_nonce"),
        ({"sub": "x" * 10_240}, 502, "subject_invalid"),
        ({"sub": ""}, 502, "subject_invalid"),
    ],
)
def test_a_token_that_does_not_hold_opens_nothing(
    server: ClosedServer, forged: ForgedProvider, person: httpx.Client, claims: dict[str, Any], status: int, reason: str
) -> None:
    forged.claims = {**forged.claims, "sub": "never", **claims}
    answer = signed_in(person, forged)
    assert answer.status_code == status
    assert not is_in(person)
    assert ("", reason) in failures(server)
    assert stored(server, "SELECT * FROM responses_app_signonaccount WHERE subject = 'never'") == []


def test_a_token_by_another_key_or_by_none(server: ClosedServer, forged: ForgedProvider, person: httpx.Client) -> None:
    forged.sign = lambda claims: signed(claims, "k2", kid="k1")
    assert "not signed with a key of Example &lt;ID&gt;" in signed_in(person, forged).text
    header, payload = "eyJhbGciOiJub25lIn0", signed(claims_for(forged.issuer, "", groups=["ops"])).split(".")[1]
    forged.sign = lambda claims: f"{header}.{payload}."
    assert "with an algorithm that is not accepted" in signed_in(person, forged).text
    for nothing in (None, 7, "", "a.b.c", "x" * 100_000):
        forged.sign = lambda claims, token=nothing: token  # type: ignore[misc]
        assert "sent no ID token that can be read" in signed_in(person, forged).text
    assert not is_in(person)
    assert {("", "token_signature"), ("", "token_algorithm"), ("", "token_malformed")} <= set(failures(server))


def test_a_code_counts_once(server: ClosedServer, forged: ForgedProvider, person: httpx.Client) -> None:
    used = begun(person, forged)
    assert person.get(BACK, params=used).status_code == 302
    for replayed in (used, {**used, "state": begun(person, forged)["state"] + "x"}):
        answer = person.get(BACK, params=replayed)
        assert answer.status_code == 400
        assert "was finished before" in answer.text
    assert is_in(person)  # a foreign link signs nobody out
    with httpx.Client(base_url=server.url) as thief:
        fresh = begun(person, forged)
        assert thief.get(BACK, params=fresh).status_code == 400  # another browser has not begun it
        own = begun(thief, forged)
        del forged.codes["code"]
        answer = thief.get(BACK, params=own)
        assert (answer.status_code, "did not accept the code" in answer.text) == (403, True)
        assert not is_in(thief)
    assert {("", "state_unknown"), ("", "code_refused")} <= set(failures(server))


def test_a_code_of_another_sign_in_has_another_proof(forged: ForgedProvider, person: httpx.Client) -> None:
    first = begun(person, forged)
    stolen = forged.codes["code"]
    second = begun(person, forged)
    forged.codes["code"] = stolen
    answer = person.get(BACK, params={**second, "code": first["code"]})
    assert answer.status_code == 403
    assert not is_in(person)


def test_what_comes_back_without_a_code(server: ClosedServer, forged: ForgedProvider, person: httpx.Client) -> None:
    assert person.get(BACK).status_code == 400
    assert person.get(BACK, params={"code": "c", "state": "s"}).status_code == 400
    state = begun(person, forged)["state"]
    assert person.get(BACK, params={"state": state, "code": ""}).status_code == 400
    state = begun(person, forged)["state"]
    denied = person.get(BACK, params={"state": state, "error": "access_denied", "error_description": "<script>"})
    assert (denied.status_code, "did not sign you in" in denied.text, "<script>" in denied.text) == (403, True, False)
    assert person.get(BACK, params={"state": state, "error": "access_denied"}).status_code == 400  # it is used up
    assert person.post(BACK, data={"state": state}).status_code in (403, 405)
    # A link on some page, with an error that this browser did not ask for, signs nobody out.
    signed_in(person, forged)
    assert person.get(BACK, params={"state": "made-up", "error": "login_required"}).status_code == 400
    assert is_in(person)


@pytest.mark.parametrize(
    ("groups", "reason", "text"),
    [
        (None, "groups_missing", "the claim 'groups' is missing"),
        ([], "groups_unmapped", "None of your groups has a role here. The operator can add one of them to OIDC_ROLES"),
        (["Ops", "visitors"], "groups_unmapped", "OIDC_ROLES"),
        (7, "groups_invalid", "is not a list of names"),
        ({"ops": True}, "groups_invalid", "OIDC_GROUPS_CLAIM"),
        (["ops", 7], "groups_invalid", "is not a list of names"),
    ],
)
def test_groups_that_give_no_role_open_nothing(
    server: ClosedServer, forged: ForgedProvider, person: httpx.Client, groups: object, reason: str, text: str
) -> None:
    forged.userinfo = {"sub": "9"}
    forged.claims = {"sub": "9", "preferred_username": "bob", "groups": groups}
    answer = signed_in(person, forged)
    assert answer.status_code == 403
    assert text in answer.text.replace("&#x27;", "'")
    assert ("bob", reason) in failures(server)
    assert "bob" not in users(server)
    assert not is_in(person)


def test_groups_may_stand_in_the_userinfo(server: ClosedServer, forged: ForgedProvider, person: httpx.Client) -> None:
    forged.claims = {"sub": "11"}
    forged.userinfo = {"sub": "12", "groups": ["ops"], "preferred_username": "eve"}
    assert "cannot use" in signed_in(person, forged).text  # it is of somebody else
    assert "eve" not in users(server)
    forged.userinfo = {**forged.userinfo, "sub": "11", "aud": "x"}
    assert signed_in(person, forged).status_code == 302
    assert users(server)["eve"] == (True, {"admin"})


def test_who_loses_the_groups_loses_every_session(
    server: ClosedServer, forged: ForgedProvider, person: httpx.Client
) -> None:
    forged.claims = {"sub": "20", "preferred_username": "cy", "groups": ["people", "ops"]}
    with httpx.Client(base_url=server.url) as other:
        signed_in(person, forged)
        signed_in(other, forged)
        assert is_in(person)
        forged.claims["groups"] = ["people"]
        assert signed_in(other, forged).status_code == 302
        assert users(server)["cy"] == (True, {"viewer"})
        forged.claims["groups"] = []
        assert signed_in(other, forged).status_code == 403
        assert users(server)["cy"] == (False, set())
        assert not is_in(other)
    assert not is_in(person)


def test_an_address_or_a_name_of_a_local_account_opens_no_local_account(
    server: ClosedServer, forged: ForgedProvider, person: httpx.Client
) -> None:
    forged.claims = {
        **{"sub": "30", "groups": ["people"], "preferred_username": NAME.upper()},
        **{"email": "root@example.com", "email_verified": True},
    }
    assert signed_in(person, forged).status_code == 302
    rows = stored(server, "SELECT u.username, u.is_superuser FROM responses_app_signonaccount a JOIN auth_user u "
                          "ON u.id = a.user_id WHERE a.subject = '30'")  # fmt: skip
    [(name, superuser)] = rows
    assert re.fullmatch(f"{NAME.upper()}-[0-9a-f]{{6}}", name)
    assert not superuser
    # Whoever comes later with the same address is somebody else again; who comes again is the same.
    assert signed_in(person, forged).status_code == 302
    forged.claims["sub"] = "31"
    assert signed_in(person, forged).status_code == 302
    assert len(stored(server, "SELECT 1 FROM auth_user WHERE email = 'root@example.com'")) == 3


def test_two_first_sign_ins_at_once_are_one_user(server: ClosedServer, forged: ForgedProvider) -> None:
    forged.claims = {"sub": "35", "groups": ["people"], "preferred_username": "two"}
    people = [httpx.Client(base_url=server.url, timeout=60) for _ in range(6)]
    backs = []
    for number, each in enumerate(people):
        location = each.get(START).headers["location"]
        backs.append(forged.sent(location, code=f"code-{number}"))
    with ThreadPoolExecutor(len(people)) as pool:
        answers = list(pool.map(lambda pair: pair[0].get(BACK, params=pair[1]), zip(people, backs, strict=True)))
    for each in people:
        each.close()
    assert [answer.status_code for answer in answers] == [302] * len(people)
    assert len(stored(server, "SELECT 1 FROM responses_app_signonaccount WHERE subject = '35'")) == 1
    assert [name for name in users(server) if name.startswith("two")] == ["two"]


def test_hostile_names_become_names(server: ClosedServer, forged: ForgedProvider, person: httpx.Client) -> None:
    for number, name in enumerate(("<script>alert(1)</script>", "a" * 5000, "../../etc", "\u202eevil", "  ", "é ü")):
        forged.claims = {"sub": f"4{number}", "groups": ["people"], "preferred_username": name}
        assert signed_in(person, forged).status_code == 302
    names = [name for (name,) in stored(
        server, "SELECT u.username FROM responses_app_signonaccount a JOIN auth_user u ON u.id = a.user_id "
                "WHERE a.subject LIKE '4_'")]  # fmt: skip
    assert len(names) == 6
    assert all(re.fullmatch(r"[\w.@+-]{1,150}", name) for name in names), names


def test_who_only_begins_leaves_nothing(server: ClosedServer, forged: ForgedProvider) -> None:
    with httpx.Client(base_url=server.url) as nobody:
        begun(nobody, forged)
        key = nobody.cookies["sessionid"]
    old = f"S.objects.filter(pk={key!r}).update(expire_date='2020-01-01T00:00:00Z')"
    server.manage("shell", "--no-imports", "-c", f"from django.contrib.sessions.models import Session as S; {old}")
    with httpx.Client(base_url=server.url) as somebody:
        begun(somebody, forged)
    assert stored(server, f"SELECT 1 FROM django_session WHERE session_key = '{key}'") == []


def test_it_leads_to_no_other_site(forged: ForgedProvider, person: httpx.Client) -> None:
    for elsewhere in ("https://example.com/", "//example.com", "/\\example.com", "javascript:alert(1)", "http:///a"):
        answer = signed_in(person, forged, next=elsewhere)
        assert answer.headers["location"] == "/admin/", elsewhere
        page = person.get("/admin/login/", params={"next": elsewhere})
        assert "example.com" not in str(page.headers)


@pytest.mark.parametrize(
    "elsewhere", ["/nowhere", "/accounts/profile/", "/v1/models", "", "?x", "https://example.com/"]
)
def test_what_is_no_page_here_is_the_dashboard(forged: ForgedProvider, person: httpx.Client, elsewhere: str) -> None:
    form = person.get("/admin/login/", params={"next": elsewhere})
    assert 'href="/oidc/authenticate/?next=%2Fadmin%2F"' in form.text
    logs_in = {"username": NAME, "password": PASSWORD, "next": elsewhere, **token(form)}
    back = {"referer": f"{person.base_url}/admin/login/"}
    assert person.post("/admin/login/", data=logs_in, headers=back).headers["location"] == "/admin/"
    assert signed_in(person, forged, next=elsewhere).headers["location"] == "/admin/"


def test_another_provider_sends_nobody_back(server: ClosedServer, forged: ForgedProvider, person: httpx.Client) -> None:
    back = begun(person, forged)
    for foreign in (["https://login.example.org"], [forged.issuer, "https://login.example.org"], [f"{forged.issuer}/"]):
        answer = person.get(BACK, params={**back, "iss": foreign})
        assert (answer.status_code, "Another provider than Example &lt;ID&gt;" in answer.text) == (403, True), foreign
        assert not is_in(person)
    assert ("", "issuer_foreign") in failures(server)
    assert person.get(BACK, params={**back, "iss": forged.issuer}).status_code == 302
    assert is_in(person)


@pytest.mark.parametrize("broken", ["/token", "/keys"])
def test_a_provider_that_is_broken_is_told_and_local_accounts_go_on(
    server: ClosedServer, forged: ForgedProvider, person: httpx.Client, broken: str
) -> None:
    back = begun(person, forged)
    wrong = {502: lambda handler: handler.send(["garbage"]), 503: lambda handler: handler.send({"error": "oops"}, 500)}
    for status, answer in wrong.items():
        forged.answers[broken] = answer
        page = person.get(BACK, params=back)
        assert page.status_code == status
        assert "local account" in page.text
        back = begun(person, forged)
    assert not is_in(person)
    local = log_in(server)
    assert is_in(local)
    assert "Logged out" in local.post("/admin/logout/", data=token(local.get("/admin/"))).text
    local.close()


def test_a_provider_that_was_away_at_the_start_is_found_when_it_comes(tmp_path: Path) -> None:
    with ForgedProvider() as forged, ClosedServer(tmp_path, **settings_for(forged)) as server:
        forged.answers[WELL_KNOWN] = lambda handler: handler.send({}, 503)
        with httpx.Client(base_url=server.url, timeout=60) as person:
            away = person.get(START)
            assert (away.status_code, away.headers["retry-after"]) == (503, "5")
            assert "Example &lt;ID&gt; cannot be reached now." in away.text
            assert person.get("/admin/login/").status_code == 200
            forged.reset()
            assert signed_in(person, forged).status_code == 302
            # A session that cannot be renewed ends: no page leads to the provider again and again.
            end_session_early(server, person)
            server.stop()
            forged.answers[WELL_KNOWN] = lambda handler: handler.send({}, 503)
            server.start()
            assert person.get("/admin/login/").status_code == 200
            assert person.get(person.get("/").headers["location"]).status_code == 503
            assert person.get("/").status_code == 200
            assert not person.get("/admin/all/").headers["location"].startswith(START)
            assert ("ana", "provider_away") in failures(server)


def test_guesses_of_the_provider_lock_nobody(server: ClosedServer, forged: ForgedProvider) -> None:
    before = len(failures(server))
    for _ in range(15):
        with httpx.Client(base_url=server.url) as nobody:
            begun(nobody, forged)
            forged.codes.clear()
            assert nobody.get(BACK, params={"code": "guess", "state": "guess"}).status_code == 400
    assert stored(server, "SELECT * FROM axes_accessattempt") == []
    assert len(failures(server)) <= before + 1  # one entry in a while, as nobody is named


def test_the_form_of_local_accounts_takes_no_code(server: ClosedServer, forged: ForgedProvider) -> None:
    with httpx.Client(base_url=server.url) as person:
        back = begun(person, forged)
        form = {**token(person.get("/admin/login/")), "username": NAME, "password": "wrong"}
        answer = person.post("/admin/login/", params=back, data=form)
        assert (answer.status_code, "Please enter the correct" in answer.text) == (200, True)
        assert not is_in(person)
    server.manage("axes_reset")


def end_session_early(server: ClosedServer, person: httpx.Client) -> None:
    """Have the time of a session by single sign-on be over."""
    key = person.cookies["sessionid"]
    lines = (
        f"from django.contrib.sessions.backends.db import SessionStore as S; s = S({key!r})",
        "s['oidc_id_token_expiration'] = 1.0; s.save()",
    )
    server.manage("shell", "--no-imports", "-c", "\n".join(lines))


def test_a_session_that_is_over_opens_nothing_until_it_is_renewed(
    server: ClosedServer, forged: ForgedProvider, person: httpx.Client
) -> None:
    forged.claims["sub"] = "50"
    signed_in(person, forged)
    key = person.cookies["sessionid"]
    how = {"origin": server.url, "subprotocols": ["respsite-session.default"]}
    with connect(server.ws_url, additional_headers={"Cookie": f"sessionid={key}"}, **how) as socket:  # type: ignore[arg-type]
        end_session_early(server, person)
        assert "session of this connection is over" in str(socket.recv(timeout=door.CHECK_SECONDS * 15))
    answer = person.get("/v1/models", headers=PASS)
    assert (answer.status_code, "session" in answer.json()["error"]["message"]) == (401, True)
    # A form, or what a page fetches by itself, is answered as to nobody; a page that is opened goes to the provider.
    assert person.post("/admin/auth/group/add/", data={"name": "x"}).status_code in (302, 403)
    fetched = person.get("/admin/all/", headers={"Sec-Fetch-Mode": "cors"})
    assert fetched.headers["location"].startswith("/admin/login/")
    for path in ("/admin/all/?a=1", "/watch/rollouts", "/"):
        leads = person.get(path)
        assert (leads.status_code, urlsplit(leads.headers["location"]).path) == (302, START), path
    again = person.get(person.get("/admin/all/?a=1").headers["location"])
    assert parse_qs(urlsplit(again.headers["location"]).query)["prompt"] == ["none"]
    back = person.get(BACK, params=forged.sent(again.headers["location"]))
    assert back.headers["location"] == "/admin/all/?a=1"
    assert is_in(person)


def test_a_session_that_is_not_renewed_is_signed_out(
    server: ClosedServer, forged: ForgedProvider, person: httpx.Client
) -> None:
    forged.claims = {**forged.claims, "sub": "51", "preferred_username": "fay"}
    signed_in(person, forged)
    end_session_early(server, person)
    away = person.get(person.get("/admin/all/").headers["location"])
    state = forged.sent(away.headers["location"])["state"]
    answer = person.get(BACK, params={"state": state, "error": "login_required"})
    assert (answer.status_code, "asks you to sign in again" in answer.text) == (403, True)
    assert person.get("/admin/all/").headers["location"].startswith("/admin/login/")
    assert stored(server, "SELECT 1 FROM responses_app_auditrow WHERE action = 'signed_out'")
    assert ("fay", "session_over") in failures(server)


def test_a_refusal_of_the_provider_signs_out_no_local_account(server: ClosedServer, forged: ForgedProvider) -> None:
    local = log_in(server)
    local.follow_redirects = False
    state = begun(local, forged, renew="1")["state"]
    assert local.get(BACK, params={"state": state, "error": "login_required"}).status_code == 403
    assert is_in(local)
    local.close()


def test_who_is_disabled_is_out_at_once(server: ClosedServer, forged: ForgedProvider, person: httpx.Client) -> None:
    forged.claims = {"sub": "60", "preferred_username": "dan", "groups": ["ops"]}
    signed_in(person, forged)
    assert is_in(person)
    disable = "from django.contrib.auth.models import User; User.objects.filter(username='dan').update(is_active=False)"
    server.manage("shell", "--no-imports", "-c", disable)
    assert not is_in(person)
    answer = signed_in(person, forged)
    assert (answer.status_code, "is disabled" in answer.text) == (403, True)
    assert ("dan", "disabled") in failures(server)


def test_signing_out_goes_on_at_the_provider(
    server: ClosedServer, forged: ForgedProvider, person: httpx.Client
) -> None:
    signed_in(person, forged)
    page = person.post("/admin/logout/", data=token(person.get("/admin/all/")))
    assert page.status_code == 200
    [url] = re.findall(r'content="0;url=([^"]*)"', page.text)
    query = parse_qs(urlsplit(url.replace("&amp;", "&")).query)
    assert url.startswith(f"{forged.issuer}/end?")
    assert query["post_logout_redirect_uri"] == [f"{server.url}/admin/login/"]
    assert query["client_id"] == [CLIENT_ID]
    assert query["id_token_hint"][0].count(".") == 2
    assert not is_in(person)


def test_no_token_is_kept_or_logged_but_in_the_session(server: ClosedServer) -> None:
    assert "eyJ" not in server.output
    assert "eyJ" not in json.dumps(stored(server, "SELECT detail, subject FROM responses_app_auditrow"))
    assert PASSWORD not in server.output
