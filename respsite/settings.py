"""Django's settings, made from the environment by `responses_app.settings.conf`. There is nothing to edit here."""

import contextlib
import importlib.util
import os
import secrets
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import dj_database_url

from engine.errors import reason_of
from responses_app.settings.conf import ConfigurationError, from_environ
from responses_app.settings.extensions import load
from responses_app.stores.roles import SIGN_ON_BACKEND

try:
    RESPSITE, RESPSITE_WARNINGS = from_environ(os.environ)
except ConfigurationError as error:
    raise SystemExit(f"respsite: {error}") from None


def _secret_key() -> str:
    """Return SECRET_KEY, or one that is made once and kept in DATA_DIR, readable by its owner alone."""
    if RESPSITE.secret_key:
        return RESPSITE.secret_key
    file = Path(RESPSITE.data_dir) / "secret_key"
    try:
        if not file.exists():
            _make_secret_key(file)
        key = file.read_text().strip()
    except OSError as error:
        raise SystemExit(
            f"respsite: DATA_DIR={RESPSITE.data_dir} cannot be used ({reason_of(error)}). "
            "Name a folder that this user may write."
        ) from None
    if not key:
        raise SystemExit(f"respsite: {file} is empty. Delete it, and a new one is made, or set SECRET_KEY.")
    return key


def _make_secret_key(file: Path) -> None:
    """Write a key and give it its name when it is whole: workers that start at once all read the first one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=file.parent, prefix="secret_key.")  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as opened:
            opened.write(secrets.token_urlsafe(50))
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)
    finally:
        os.unlink(draft)


SECRET_KEY = _secret_key()
DEBUG = RESPSITE.debug
ALLOWED_HOSTS = list(RESPSITE.allowed_hosts)
CSRF_TRUSTED_ORIGINS = list(RESPSITE.csrf_trusted_origins)
CSRF_FAILURE_VIEW = "responses_app.admin.requests.csrf_failure"

# Behind a proxy with TLS: the admin's cookies go over HTTPS alone, and who comes without is sent there. These count for
# Django's own part; the API, `/health`, `/ready` and `/metrics` answer before that, whatever the scheme.
BEHIND_TLS = RESPSITE.behind_proxy == "tls"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = BEHIND_TLS
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if BEHIND_TLS else 0
# W005, W021: whether all other hosts of this domain have TLS, and whether browsers should carry it in their lists, is
# not for this server to say.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

INSTALLED_APPS = [
    # Before the admin: their templates go first.
    *(f"{extension.__module__}.{extension.__qualname__}" for extension in load(RESPSITE.extensions)),
    "responses_app",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "axes",
    "channels",
]

# The first one answers the API's paths itself; the others serve the admin alone (they cost 3 ms a request).
MIDDLEWARE = [
    "responses_app.web.middleware.ApiMiddleware",
    "responses_app.admin.requests.close_connections",
    "responses_app.admin.requests.content_policy",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "responses_app.admin.requests.refusals",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
]
if RESPSITE.oidc_issuer:  # single sign-on: sessions of it end, and are renewed
    MIDDLEWARE.insert(
        MIDDLEWARE.index("django.contrib.messages.middleware.MessageMiddleware"),
        "responses_app.admin.sign_on.views.renewal",
    )

# Guesses at the admin's login: counted in the database, so over all workers, by user name and by address. A success
# resets nothing (who has one password could go on guessing another), and a guess while locked does not prolong it.
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
if RESPSITE.oidc_issuer:  # before django-axes: who comes from the provider guesses no password
    AUTHENTICATION_BACKENDS.insert(0, SIGN_ON_BACKEND)
AXES_FAILURE_LIMIT = RESPSITE.admin_login_failures
AXES_COOLOFF_TIME = timedelta(seconds=RESPSITE.admin_login_lock_seconds)
AXES_LOCKOUT_PARAMETERS = ["username", "ip_address"]
AXES_RESET_ON_SUCCESS = False
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_CLIENT_IP_CALLABLE = "responses_app.admin.requests.client_address"
AXES_LOCKOUT_CALLABLE = "responses_app.admin.requests.locked_page"
AXES_DISABLE_ACCESS_LOG = True  # it would keep each login for ever
AXES_ENABLE_ADMIN = False

ROOT_URLCONF = "respsite.urls"
ASGI_APPLICATION = "respsite.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]


def database(url: str) -> dict[str, Any]:
    """Return Django's configuration of a database; connections stay open, in the few threads that have one.

    Ends the process with one sentence where the URL cannot work.
    """
    try:
        return _database(url)
    except ValueError:
        raise SystemExit(
            "respsite: DATABASE_URL is not valid: it takes sqlite:///path or postgres://user:password@host/name, with "
            "special characters of the password written as %XX."
        ) from None
    except OSError as error:
        raise SystemExit(f"respsite: the folder of the database cannot be made ({reason_of(error)}).") from None


def _split_hosts(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL with the first of its hosts alone, and Django's settings for all of them; {} where it has one.

    PostgreSQL's own URLs may name several: `postgres://user@one:5432,two:5432/name?target_session_attrs=read-write`.
    """
    authority = urlsplit(url).netloc
    hosts = authority.rpartition("@")[2].split(",")
    if len(hosts) == 1:
        return url, {}
    parts = [urlsplit(f"//{host}") for host in hosts]
    ports = [str(part.port or 5432) for part in parts]
    return url.replace(",".join(hosts), hosts[0], 1), {
        "HOST": ",".join(unquote(part.hostname or "") for part in parts),
        "PORT": ",".join(ports),
    }


def _database(url: str) -> dict[str, Any]:
    first, hosts = _split_hosts(url)
    config: dict[str, Any] = dict(dj_database_url.parse(first, conn_max_age=None, conn_health_checks=True)) | hosts
    if config["ENGINE"].endswith("sqlite3"):
        # Write-ahead log: readers never wait for the writer. IMMEDIATE: writers queue instead of failing ("locked").
        milliseconds = round(RESPSITE.database_timeout_seconds * 1000)
        config["OPTIONS"] = {
            "timeout": RESPSITE.database_timeout_seconds,
            "transaction_mode": "IMMEDIATE",
            "init_command": f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout={milliseconds}",
        }
        Path(config["NAME"]).parent.mkdir(parents=True, exist_ok=True)
    elif importlib.util.find_spec("psycopg") is None:
        raise SystemExit(
            "respsite: DATABASE_URL names PostgreSQL; install what it needs: pip install -e '.[postgres]'."
        )
    else:
        config["ENGINE"] = "responses_app.stores.database.postgres"
        seconds = max(2, min(5, round(RESPSITE.database_timeout_seconds)))  # libpq takes no fewer
        config["OPTIONS"] = {"connect_timeout": seconds, **config.get("OPTIONS", {})}
        config["MAX_CONNECTIONS"] = RESPSITE.database_connections  # of `kit.pool`
    return config


DATABASES = {"default": database(RESPSITE.database)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# The one place that names Redis. `socket_timeout: None`: redis-py >= 8 would cut blocking reads after 5 s.
if RESPSITE.redis_url:
    CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "responses_app.wiring.redis_layer.PatientRedisLayer",
            "CONFIG": {"hosts": [{"address": RESPSITE.redis_url, "socket_timeout": None}], "prefix": "respsite"},
        },
    }
else:
    CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}

STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
USE_I18N = False

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"()": "responses_app.observing.logs.TextLines"},
        "json": {"()": "responses_app.observing.logs.JsonLogLines"},
    },
    "filters": {
        "discreet": {"()": "responses_app.observing.logs.Discreet"},
        "seldom": {"()": "responses_app.observing.logs.Seldom"},
    },
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "stream": sys.stderr,
            "formatter": RESPSITE.log_format,
            "filters": ["seldom", "discreet"],
        }
    },
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {
        "respsite": {"level": RESPSITE.log_level.upper()},
        "django": {"handlers": [], "level": "WARNING", "propagate": True},
        "django.request": {"level": "ERROR"},  # a 404 of the API is the client's business
        "mcp": {
            "level": "CRITICAL"
        },  # of what a server of MCP does wrong `respsite.tools` says a line, this a traceback
        "axes": {"level": "ERROR"},  # `responses_app.admin.requests` says what is locked
    },
}
