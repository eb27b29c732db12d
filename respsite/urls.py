"""Paths of Django's own part; the API's are in `responses_app.urls`, behind `ApiMiddleware`."""

from django.conf import settings
from django.contrib import admin
from django.templatetags.static import static
from django.urls import path, re_path
from django.views.generic import RedirectView

from responses_app.admin.requests import login
from responses_app.api.server import docs, front
from responses_app.kit.extension import extensions

handler400 = "responses_app.admin.requests.bad_request"
handler403 = "responses_app.admin.requests.forbidden"
handler404 = "responses_app.admin.requests.not_found"
handler500 = "responses_app.admin.requests.broken"

SIGN_ON = []
if settings.RESPSITE.oidc_issuer:
    from responses_app.admin.sign_on import views as sign_on

    # The names are those by which mozilla-django-oidc finds them.
    SIGN_ON = [
        path("oidc/authenticate/", sign_on.start, name="oidc_authentication_init"),
        path("oidc/callback/", sign_on.back, name="oidc_authentication_callback"),
        path("admin/logout/", sign_on.logout),  # before the admin's own
    ]

urlpatterns = [
    *SIGN_ON,
    path("admin/login/", login),  # before the admin's own
    *(page for extension in extensions() for page in extension.pages()),
    path("admin/", admin.site.urls),
    path("docs", RedirectView.as_view(url="/docs/", permanent=True)),
    re_path(r"^docs/(?P<path>.*)$", docs, name="docs"),
    path("favicon.ico", RedirectView.as_view(url=static("respsite/icon.svg"))),  # browsers ask for it unasked
    path("", front, name="front"),
]
