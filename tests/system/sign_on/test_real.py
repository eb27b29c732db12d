"""Single sign-on in Chromium, at a real provider in a process of its own: in, out, over, revoked, a second factor.

Only here do redirects, cookies and answers of a real provider meet those of a real browser.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.kit.browser import needs_chromium, opened, problems_of
from tests.kit.closed import ClosedServer
from tests.kit.people import make_superuser
from tests.kit.stored import stored
from tests.system.sign_on.identity import CLIENT_ID, PASSWORD, SECRET, Identity, totp

pytestmark = [needs_chromium]


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Identity]:
    identity = Identity(tmp_path_factory.mktemp("identity"))
    yield identity
    identity.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, identity: Identity) -> Iterator[ClosedServer]:
    server = ClosedServer(
        tmp_path_factory.mktemp("server"),
        auth="on",
        oidc_issuer=identity.issuer,
        oidc_client_id=CLIENT_ID,
        oidc_client_secret=SECRET,
        oidc_name="Example",
        oidc_roles=json.dumps({"ops": "admin"}),
    )
    identity.start(server.url)
    make_superuser(server)
    with server:
        yield server
        assert "Traceback" not in server.output


@contextmanager
def person(browser: Browser) -> Iterator[Page]:
    """Open a page of somebody whose browser knows nobody yet; nothing may go wrong on it."""
    with opened(browser) as page:
        problems = problems_of(page)
        yield page
        assert [each for each in problems if "status of 40" not in each] == []


def sign_in(page: Page, server: ClosedServer, name: str, *, path: str = "/admin/all/") -> None:
    page.goto(f"{server.url}/admin/login/?next={path}")
    page.get_by_role("link", name="Sign in with Example").click()
    page.locator("#id_login").fill(name)
    page.locator("#id_password").fill(PASSWORD)
    page.get_by_role("button", name="Sign In").click()


def is_over_for(page: Page, server: ClosedServer) -> None:
    """Have the time of the session of a page be over."""
    [key] = [cookie["value"] for cookie in page.context.cookies(server.url) if cookie["name"] == "sessionid"]
    lines = (
        f"from django.contrib.sessions.backends.db import SessionStore as S; s = S({key!r})",
        "s['oidc_id_token_expiration'] = 1.0; s.save()",
    )
    server.manage("shell", "--no-imports", "-c", "\n".join(lines))


def at(page: Page, server: ClosedServer, path: str) -> None:
    page.wait_for_url(f"{server.url}{path}")


@pytest.mark.representative
def test_in_and_out(browser: Browser, server: ClosedServer, identity: Identity) -> None:
    """Finds a step of signing in or out that a real provider and a real browser do not take as we do."""
    with person(browser) as page:
        sign_in(page, server, "ana", path="/admin/all/")
        at(page, server, "/admin/all/")
        expect(page.locator("#user-tools")).to_contain_text("ana")
        page.goto(f"{server.url}/watch/rollouts")
        at(page, server, "/watch/rollouts")
        page.goto(server.url)  # the playground comes in by the same session
        page.locator("#state[data-state=open]").wait_for()
        page.locator(".composer textarea").fill("repeat: by single sign-on")
        page.locator(".composer textarea").press("Enter")
        expect(page.locator(".turn .answer").first).to_have_text("by single sign-on")
        page.goto(f"{server.url}/admin/all/")
        page.get_by_role("button", name="Log out").click()
        at(page, server, "/admin/login/")  # by way of the provider, which has ended its own session, too
        page.get_by_role("link", name="Sign in with Example").click()
        expect(page.locator("#id_login")).to_be_visible()
        assert page.url.startswith(identity.issuer)
        page.goto(f"{server.url}/admin/all/")
        expect(page.locator("#id_username")).to_be_visible()
    trail = stored(server, "SELECT action, detail FROM responses_app_auditrow WHERE actor_name = 'ana'")
    assert ("signed_in", '{"by":"single sign-on"}') in trail
    assert ("signed_out", "{}") in trail


def test_a_session_that_is_over_is_renewed_without_a_question(browser: Browser, server: ClosedServer) -> None:
    with person(browser) as page:
        sign_in(page, server, "ana")
        at(page, server, "/admin/all/")
        is_over_for(page, server)
        page.goto(f"{server.url}/admin/all/?again")
        at(page, server, "/admin/all/?again")
        expect(page.locator("#user-tools")).to_contain_text("ana")


@pytest.mark.parametrize(
    "revoked",
    [
        "UPDATE auth_user SET is_active = 0 WHERE username = 'zoe'",  # the account there
        "DELETE FROM allauth_idp_oidc_token",  # what it has granted
    ],
)
def test_who_is_removed_at_the_provider_is_not_renewed(
    browser: Browser, server: ClosedServer, identity: Identity, revoked: str
) -> None:
    identity.change("UPDATE auth_user SET is_active = 1 WHERE username = 'zoe'")
    with person(browser) as page:
        sign_in(page, server, "zoe")
        at(page, server, "/admin/all/")
        identity.change(revoked)
        is_over_for(page, server)
        page.goto(f"{server.url}/admin/all/")
        expect(page.locator(".errornote")).to_be_visible()
        page.goto(f"{server.url}/admin/all/")
        expect(page.locator("#id_username")).to_be_visible()


def test_a_second_factor_is_the_provider_s(browser: Browser, server: ClosedServer) -> None:
    with person(browser) as page:
        sign_in(page, server, "tia")
        code = page.locator("#id_code")
        expect(code).to_be_visible()
        page.goto(f"{server.url}/admin/all/")  # the password alone opens nothing
        expect(page.locator("#id_username")).to_be_visible()
        page.context.clear_cookies(name="provider")  # which would go on where it was left
        sign_in(page, server, "tia")
        code.fill("000000")
        page.get_by_role("button", name="Sign In").click()
        expect(page.locator("body")).to_contain_text("Incorrect code")
        code.fill(totp())
        page.get_by_role("button", name="Sign In").click()
        at(page, server, "/admin/all/")
        expect(page.locator("#user-tools")).to_contain_text("tia")
