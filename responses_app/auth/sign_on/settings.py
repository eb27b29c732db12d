"""The settings of single sign-on. All of it is off without OIDC_ISSUER."""

import json
from collections.abc import Container
from dataclasses import dataclass
from urllib.parse import urlsplit

from responses_app.auth.door import LOOPBACK_NAMES
from responses_app.protocol.setting import RoomSettings, seconds, setting, text
from responses_app.stores.roles import Role

MAX_ISSUER = 255  # characters, as `SignOnAccount` keeps it
MAX_TEXT = 100  # characters of a name that people read
_EXAMPLE = '{"llm-users": "viewer", "llm-admins": "admin"}'


def is_safe_url(url: str, *, plain: bool) -> bool:
    """Whether a URL is one of HTTPS; or of HTTP on this machine, where `plain` allows it."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or parts.username is not None or parts.fragment or not url.isprintable() or " " in url:
        return False
    return parts.scheme == "https" or (plain and parts.scheme == "http" and host in LOOPBACK_NAMES)


def issuer(value: str) -> str:
    """The URL of a provider."""
    if len(value) > MAX_ISSUER or not is_safe_url(value, plain=True) or urlsplit(value).query:
        raise ValueError(
            "the provider's issuer, a URL like https://login.example.com/realms/main (http:// on this machine alone)"
        )
    return value


def scopes(value: str) -> tuple[str, ...]:
    """Scopes of OpenID Connect."""
    scopes = tuple(value.replace(",", " ").split())
    if "openid" not in scopes:
        raise ValueError("scopes separated by spaces, one of them openid, like openid profile email")
    return scopes


def roles(value: str) -> dict[str, str]:
    """Roles by the provider's groups."""
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    # `str(role)`: what is not text may not be hashable.
    if not isinstance(parsed, dict) or not parsed or not all(str(role) in list(Role) for role in parsed.values()):
        raise ValueError(f"a JSON object of groups and their roles ({', '.join(Role)}), like {_EXAMPLE}")
    return parsed


def name(value: str) -> str:
    """A name for people."""
    if not value.isprintable() or len(value) > MAX_TEXT:
        raise ValueError(f"up to {MAX_TEXT} characters that can be printed")
    return value


@dataclass(frozen=True, kw_only=True)
class SignOnSettings(RoomSettings):
    """The settings of single sign-on."""

    oidc_issuer: str = setting(
        "", issuer,
        "issuer URL of the OpenID Connect provider where users of the admin may sign in (see Single sign-on)",
        default_text="unset: local accounts only",
    )  # fmt: skip
    oidc_client_id: str = setting("", text, "client ID of this server at the provider", default_text="unset")
    oidc_client_secret: str = setting(
        "", text, "client secret of this server at the provider", default_text="unset", secret=True
    )
    oidc_name: str = setting("single sign-on", name, "name of the provider on the login page: *Sign in with NAME*")
    oidc_scopes: tuple[str, ...] = setting(
        ("openid", "profile", "email"), scopes,
        "scopes to ask the provider for; some providers need one more for groups",
        default_text="openid profile email",
    )  # fmt: skip
    oidc_groups_claim: str = setting(
        "groups", name, "claim of the ID token, or of the provider's userinfo, that has a user's groups"
    )
    oidc_roles: dict[str, str] = setting(
        {}, roles,
        "roles by the provider's groups, as JSON: `viewer`, `auditor`, `operator` or `admin`; who is in none of "
        "these groups may not sign in",
        default_text="unset",
    )  # fmt: skip
    oidc_session_seconds: float = setting(
        28800.0, seconds(60),
        "how long a session by single sign-on lasts until the provider is asked again, and so how long somebody "
        "who lost their groups there may go on",
    )  # fmt: skip

    def problem(self, given: Container[str]) -> str | None:
        """Return what single sign-on lacks."""
        for needed in ("oidc_client_id", "oidc_client_secret", "oidc_roles"):
            if self.oidc_issuer and not getattr(self, needed):
                return f"OIDC_ISSUER={self.oidc_issuer} needs {needed.upper()} too (see Single sign-on)."
        return None
