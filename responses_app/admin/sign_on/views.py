"""The pages of single sign-on: to the provider, back from it, and out; and the middleware that renews sessions.

Each refusal is a page with a sentence, a line in the log, and an entry of the audit trail. Of those whom the provider
has not named yet, an address adds an entry once in a while, so that nobody fills the trail.
"""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib import admin, auth
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST
from mozilla_django_oidc.views import OIDCAuthenticationCallbackView, OIDCAuthenticationRequestView

from responses_app.admin.auditing import actor_of
from responses_app.admin.requests import keep_own_next
from responses_app.admin.sign_on.backend import library_setting, provider
from responses_app.auth.sign_on.refusal import Reason, SignOnRefused
from responses_app.observing.logs import OF_STRANGERS
from responses_app.resources.audit.fields import Action, Actor, ActorKind, AuditEntry
from responses_app.resources.audit.store import RecentViews, record
from responses_app.stores.database.sign_on import ID_TOKEN, by_sign_on, is_over, remove_old_sessions

logger = logging.getLogger("respsite.admin")

BEGUN_SECONDS = 900  # that a sign-in may take at the provider
RENEW = "renew"  # in a query: the provider is not to ask anything
# What a provider says that may not ask and would have to.
ASKS = ("login_required", "interaction_required", "consent_required", "account_selection_required")
_recent = RecentViews()  # refusals of nobody known, by address and reason


def explained(view: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Make a view that says on a page why it refuses."""

    @wraps(view)
    def answered(request: HttpRequest) -> HttpResponse:
        try:
            return view(request)
        except SignOnRefused as refused:
            return _refusal(request, refused)
        except SuspiciousOperation:  # the library's word for a state that this session did not begin
            return _refusal(request, SignOnRefused(Reason.STATE_UNKNOWN))

    return never_cache(require_GET(answered))


class _Start(OIDCAuthenticationRequestView):
    get_settings = staticmethod(library_setting)

    def get(self, request: HttpRequest) -> HttpResponse:
        answer: HttpResponse = super().get(request)
        if not request.user.is_authenticated:
            request.session.set_expiry(BEGUN_SECONDS)  # anybody may begin, and few end it
            remove_old_sessions()
        return answer

    def get_extra_params(self, request: HttpRequest) -> dict[str, str]:
        return {"prompt": "none"} if RENEW in request.GET else {}


class _Back(OIDCAuthenticationCallbackView):
    get_settings = staticmethod(library_setting)

    def get(self, request: HttpRequest) -> HttpResponse:
        # Before the library, which signs out whoever comes with an error: a link on any page could do that.
        if request.GET.get("state") not in (request.session.get("oidc_states") or ()):
            raise SignOnRefused(Reason.STATE_UNKNOWN)
        async_to_sync(provider().endpoints)().check_sender(request.GET.getlist("iss"))
        # A link can also begin a sign-in that the provider refuses: who is in by a password stays in.
        if request.GET.get("error") and request.user.is_authenticated and not by_sign_on(request.session):
            return self.login_failure()
        return super().get(request)

    def login_success(self) -> HttpResponse:
        answer: HttpResponse = super().login_success()
        self.request.session[ID_TOKEN] = self.request.sign_on_token
        self.request.session.set_expiry(None)
        return answer

    def login_failure(self) -> HttpResponse:
        error = self.request.GET.get("error", "")
        raise SignOnRefused(Reason.SESSION_OVER if error in ASKS else Reason.PROVIDER_REFUSED, f"{error[:100]!r}")


@explained
def start(request: HttpRequest) -> HttpResponse:
    """Send somebody to the provider. Whose session is over and cannot be renewed is signed out."""
    keep_own_next(request)
    try:
        return _Start.as_view()(request)
    except SignOnRefused as refused:
        if is_over(request.session):  # else each page would lead here again
            refused.who = request.user.get_username()
            auth.logout(request)
        raise


@explained
def back(request: HttpRequest) -> HttpResponse:
    """Sign in who comes back from there. Whose session is not renewed is signed out."""
    before = request.user.get_username() if by_sign_on(request.session) else ""
    try:
        return _Back.as_view()(request)
    except SignOnRefused as refused:
        if before and refused.reason not in (Reason.STATE_UNKNOWN, Reason.ISSUER_FOREIGN):
            refused.who = refused.who or before
            if request.user.is_authenticated:  # the library has signed out whoever comes with an error
                auth.logout(request)
        raise


@require_POST
def logout(request: HttpRequest) -> HttpResponse:
    """Sign out here, and then at the provider where the session came from there.

    The second step is one of a page, as the answer to a form may not lead to another site (`form-action`).
    """
    url = _end_session_url(request) if by_sign_on(request.session) else ""
    if not url:
        return admin.site.logout(request)
    auth.logout(request)
    context = {**admin.site.each_context(request), "title": "Signed out", "url": url, "name": _name()}
    return render(request, "admin/respsite/signing_out.html", context)


def _end_session_url(request: HttpRequest) -> str:
    try:
        url = async_to_sync(provider().endpoints)().end_session
    except SignOnRefused as refused:
        logger.warning("somebody signs out here, and cannot at the provider: %s", refused)
        return ""
    query = {
        "client_id": settings.RESPSITE.oidc_client_id,
        "post_logout_redirect_uri": request.build_absolute_uri(reverse("admin:login")),
        "id_token_hint": request.session.get(ID_TOKEN, ""),
    }
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}" if url else ""


def _refusal(request: HttpRequest, refused: SignOnRefused) -> HttpResponse:
    reason = refused.reason
    _record(request, refused)
    text = reason.text.format(name=_name(), claim=settings.RESPSITE.oidc_groups_claim)
    context = {**admin.site.each_context(request), "title": "Not signed in", "text": text[:1].upper() + text[1:]}
    answer = render(request, "admin/respsite/sign_on_refused.html", context, status=reason.status)
    if reason.status == Reason.PROVIDER_AWAY.status:
        answer["Retry-After"] = "5"
    return answer


def _record(request: HttpRequest, refused: SignOnRefused) -> None:
    address = actor_of(request).address
    if not refused.who:
        if _recent.has(address, refused.reason):
            return
        _recent.add(address, refused.reason)
    logger.warning("a sign-in by single sign-on was refused: %s", refused, extra=OF_STRANGERS)
    actor = Actor(ActorKind.NOBODY, address=address)
    detail = {"by": "single sign-on", "reason": str(refused.reason)}
    record(AuditEntry(actor, Action.SIGN_IN_FAILED, refused.who, detail=detail))


def _name() -> str:
    return str(settings.RESPSITE.oidc_name)


GetResponse = Callable[[HttpRequest], HttpResponseBase]


def renewal(get_response: GetResponse) -> GetResponse:
    """Make the middleware that sends whose session is over to the provider, which asks nothing if all is well there.

    What is not a page that somebody opens, such as a form, cannot go there: it is answered as if nobody was signed in.
    """

    def middleware(request: HttpRequest) -> HttpResponseBase:
        own = (reverse("oidc_authentication_init"), reverse("oidc_authentication_callback"), reverse("admin:logout"))
        if is_over(request.session) and request.path not in own:
            # The login page stays one for local accounts, as a browser may not reach the provider.
            navigates = request.headers.get("sec-fetch-mode", "navigate") == "navigate"
            opens_page = request.method == "GET" and navigates and request.accepts("text/html")
            if opens_page and request.path != reverse("admin:login"):
                query: dict[str, Any] = {RENEW: 1, "next": request.get_full_path()}
                return HttpResponseRedirect(f"{own[0]}?{urlencode(query)}")
            request.user = AnonymousUser()
        return get_response(request)

    return middleware
