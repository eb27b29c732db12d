"""A provider of OpenID Connect: django-allauth's own, with second factors. It runs in a venv of its own.

    python provider.py PORT FOLDER '{"client": …, "secret": …, "back": …, "out": …, "password": …, "totp": …}'

Its users are ana and zoe (in the group ops), and tia (as ana, with a second factor).
Its database is `FOLDER/provider.sqlite3`.
"""

import json
import sys
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import django
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from django.conf import settings

port, folder, told = int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
key = generate_private_key(public_exponent=65537, key_size=2048)
MIDDLEWARE = """
    django.contrib.sessions.middleware.SessionMiddleware django.middleware.csrf.CsrfViewMiddleware
    django.contrib.auth.middleware.AuthenticationMiddleware django.contrib.messages.middleware.MessageMiddleware
    allauth.account.middleware.AccountMiddleware
"""
APPS = """
    django.contrib.auth django.contrib.contenttypes django.contrib.sessions django.contrib.messages
    allauth allauth.account allauth.mfa allauth.idp allauth.idp.oidc
"""
settings.configure(
    SECRET_KEY="of a provider in a test",
    ALLOWED_HOSTS=["localhost"],
    ROOT_URLCONF="__main__",
    INSTALLED_APPS=APPS.split(),
    MIDDLEWARE=MIDDLEWARE.split(),
    AUTHENTICATION_BACKENDS=["allauth.account.auth_backends.AuthenticationBackend"],
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "provider.sqlite3"}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    SESSION_COOKIE_NAME="provider",
    CSRF_COOKIE_NAME="provider-csrf",
    USE_TZ=True,
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    ACCOUNT_EMAIL_VERIFICATION="none",
    ACCOUNT_RATE_LIMITS=False,
    LOGIN_REDIRECT_URL="/",
    MFA_SUPPORTED_TYPES=["totp"],
    IDP_OIDC_ADAPTER="__main__.Adapter",
    IDP_OIDC_PRIVATE_KEY=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
    IDP_OIDC_RP_INITIATED_LOGOUT_ASKS_FOR_OP_LOGOUT=False,
)
django.setup()

from allauth.idp.oidc.adapter import DefaultOIDCAdapter  # noqa: E402 - models come behind the settings
from allauth.idp.oidc.models import Client  # noqa: E402
from allauth.mfa.totp.internal.auth import TOTP  # noqa: E402
from django.contrib.auth.models import Group, User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.urls import include, path  # noqa: E402

urlpatterns = [path("accounts/", include("allauth.urls")), path("", include("allauth.idp.urls"))]


class Adapter(DefaultOIDCAdapter):
    def get_claims(self, purpose, user, client, scopes, **kwargs):
        claims = super().get_claims(purpose, user, client, scopes, **kwargs)
        return {**claims, "groups": [group.name for group in user.groups.all()]}


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Handler(WSGIRequestHandler):
    def log_message(self, *args) -> None:
        """Say nothing."""


if not (folder / "provider.sqlite3").exists():
    call_command("migrate", verbosity=0)
    for name, group in (("ana", "ops"), ("zoe", "ops"), ("tia", "ops")):
        user = User.objects.create_user(name, f"{name}@example.com", told["password"])
        user.groups.add(Group.objects.get_or_create(name=group)[0])
    TOTP.activate(User.objects.get(username="tia"), told["totp"])
    client = Client(id=told["client"], name="respsite", scopes="openid\nprofile\nemail", skip_consent=True)
    client.set_secret(told["secret"])
    client.set_redirect_uris([told["back"]])
    client.set_post_logout_redirect_uris([told["out"]])
    client.save()
make_server("127.0.0.1", port, get_wsgi_application(), Server, Handler).serve_forever()
