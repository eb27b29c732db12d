"""`SignOnBackend`: mozilla-django-oidc's backend, with what that leaves open.

The library has the flow: state, nonce, PKCE and the exchange of the code. It checks neither audience nor issuer, finds
users by their address, waits for ever for a provider, and lets disabled users go on. All of that is decided here.

What is refused is raised, and not answered with None: Django would ask the next backend then, and count the provider's
faults as guesses at a password.
"""

from functools import lru_cache
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from mozilla_django_oidc.auth import OIDCAuthenticationBackend

from responses_app.admin.auditing import actor_of
from responses_app.auth.sign_on.provider import Provider
from responses_app.auth.sign_on.refusal import Reason, SignOnRefused
from responses_app.auth.sign_on.tokens import Claims, person_of, roles_of, verified
from responses_app.settings.conf import Settings
from responses_app.stores.database.roles import apply_roles
from responses_app.stores.database.sign_on import make_user, user_of

NO_DEFAULT = object()


@lru_cache(maxsize=1)
def provider() -> Provider:
    """Return what asks the provider, in this process."""
    return Provider(settings.RESPSITE)


def library_setting(name: str, default: Any = NO_DEFAULT) -> Any:
    """Return what the library asks its settings for: the endpoints of the provider are known only by asking it."""
    own: Settings = settings.RESPSITE
    known = {
        "OIDC_RP_CLIENT_ID": own.oidc_client_id,
        "OIDC_RP_CLIENT_SECRET": own.oidc_client_secret,
        "OIDC_RP_SCOPES": " ".join(own.oidc_scopes),
        "OIDC_USE_PKCE": True,
        "OIDC_RENEW_ID_TOKEN_EXPIRY_SECONDS": own.oidc_session_seconds,
        "LOGIN_REDIRECT_URL": "admin:index",
        # Nothing is fetched by the library itself.
        "OIDC_OP_TOKEN_ENDPOINT": "",
        "OIDC_OP_USER_ENDPOINT": "",
    }
    if name == "OIDC_OP_AUTHORIZATION_ENDPOINT":
        return async_to_sync(provider().endpoints)().authorization
    if name in known:
        return known[name]
    if default is NO_DEFAULT:
        raise ImproperlyConfigured(name)
    return default


class SignOnBackend(OIDCAuthenticationBackend):
    """Makes a user of the code that the provider sends somebody back with."""

    get_settings = staticmethod(library_setting)

    def authenticate(self, request: HttpRequest | None, **kwargs: Any) -> User | None:
        """Return the user. Raises `SignOnRefused`; None for a password, which the other backends look at."""
        # The form of local accounts comes with a query of its own choice.
        if request is None or "nonce" not in kwargs:
            return None
        if not request.GET.get("code"):
            raise SignOnRefused(Reason.STATE_UNKNOWN)
        return super().authenticate(request, **kwargs)

    def get_token(self, payload: dict[str, str]) -> Claims:
        """Exchange the code."""
        return async_to_sync(provider().tokens)(payload)

    def verify_token(self, token: object, **kwargs: Any) -> Claims:
        """Return the claims of an ID token."""
        return verified(
            token,
            async_to_sync(provider().keys)(),
            issuer=async_to_sync(provider().endpoints)().issuer,
            client_id=settings.RESPSITE.oidc_client_id,
            nonce=kwargs.get("nonce"),
        )

    def store_tokens(self, access_token: object, id_token: str) -> None:
        """Keep the ID token until there is a session for it. The access token is not kept."""
        self.request.sign_on_token = id_token

    def get_or_create_user(self, access_token: object, id_token: str, payload: Claims) -> User:
        """Return who signs in, with the roles of their groups."""
        own: Settings = settings.RESPSITE
        claims = self._with_groups(payload, access_token, own.oidc_groups_claim)
        person = person_of(claims, payload["iss"])
        try:
            roles = roles_of(claims, own.oidc_groups_claim, own.oidc_roles, who=person.name)
        except SignOnRefused:
            # Without a role they lose those of before, in all their sessions.
            if (known := user_of(person.issuer, person.subject)) is not None:
                apply_roles(known, (), address=actor_of(self.request).address)
            raise
        user = user_of(person.issuer, person.subject)
        if user is None:
            user = make_user(person.issuer, person.subject, name=person.name, email=person.email)
        if not user.is_active:
            raise SignOnRefused(Reason.DISABLED, who=user.get_username())
        apply_roles(user, roles, address=actor_of(self.request).address)
        return user

    def get_user(self, user_id: int) -> User | None:
        """Return the user of a session, unless they are disabled: that ends it at once."""
        user = super().get_user(user_id)
        return user if user is not None and self.user_can_authenticate(user) else None

    def _with_groups(self, payload: Claims, access_token: object, claim: str) -> Claims:
        """Return the claims, and if they lack the groups those of the userinfo, which is not signed."""
        if claim in payload:
            return payload
        told = async_to_sync(provider().userinfo)(access_token)
        if told and told.get("sub") != payload["sub"]:
            raise SignOnRefused(Reason.PROVIDER_INVALID, "its userinfo is of somebody else")
        return {**told, **payload}
