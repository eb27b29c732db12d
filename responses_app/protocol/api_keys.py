"""API keys: what they are, what they allow, and the errors of those that do not.

A key is `sk-` and 43 characters, 256 bits that nobody can guess. It is shown once, when it is made. What is kept is its
SHA-256 digest, and its beginning, by which people tell keys apart. No slow hash is needed, as for passwords: nobody can
try 2^256 keys.

Everything that is stored belongs to the project of the key it was stored with, and exists for no other project.

An admin key begins with `sk-admin-` and belongs to no project. It opens /v1/organization, where projects and their keys
are managed, and nothing else; no other key opens that, whatever its scopes.
"""

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from responses_app.protocol.errors import ApiError, forbidden
from responses_app.protocol.rate_limits import LimitedSubject

DEFAULT_PROJECT = "default"  # of those who are not asked for a key
PROJECT_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"  # what an operator may call a project
START = "sk-"
ADMIN_START = "sk-admin-"
_RANDOM_BYTES = 32  # 43 characters of base64url
_SHOWN = 6  # random characters that are shown: 36 bits of the 256, which leaves 220 to guess
_MAX_SHOWN = 12  # characters that an error looks at, of what was sent as a key


class Area(StrEnum):
    """What keys are made for; each has a scope to read, and one to write."""

    MODELS = "api.model"
    RESPONSES = "api.responses"
    CONVERSATIONS = "api.conversations"
    CONTAINERS = "api.containers"
    FILES = "api.files"
    VECTOR_STORES = "api.vector_stores"
    EMBEDDINGS = "api.embeddings"
    SKILLS = "api.skills"
    WEBHOOKS = "api.webhooks"
    ROLLOUTS = "api.rollouts"
    ENGINE = "api.engine"
    MANAGEMENT = "api.management"  # of projects and keys

    def scope(self, *, writes: bool) -> str:
        """Return one of the two."""
        return f"{self}.{'write' if writes else 'read'}"


READS_CONVERSATIONS = "api.conversations.read"
READS_METRICS = "api.metrics.read"  # the whole server's: only a key that is made for this reads them
# Engines serve all projects: only a key that is made for this sees, or changes, what a trainer does to them.
READS_ENGINE, WRITES_ENGINE = "api.engine.read", "api.engine.write"
_OTHERS = (Area.MODELS, Area.MANAGEMENT)  # nobody writes the one, and only admin keys have the other
# What a key may be made for; one without any scope may do everything but what only keys made for it may. Most
# names are OpenAI's.
SCOPES = (
    Area.MODELS.scope(writes=False),
    *(area.scope(writes=writes) for area in Area if area not in _OTHERS for writes in (False, True)),
    READS_METRICS,
)
MANAGES = (Area.MANAGEMENT.scope(writes=False), Area.MANAGEMENT.scope(writes=True))  # of admin keys, and only theirs
ONLY_NAMED = (READS_ENGINE, WRITES_ENGINE, READS_METRICS)  # what a key without scopes may not do

BY_SESSION = "session"  # stands for the id of a key where a user of the admin comes in without one, before the user's


def is_by_session(key_id: str) -> bool:
    """Whether a user of the admin asked, and no key; older versions did not keep which user."""
    return key_id == BY_SESSION or key_id.startswith(f"{BY_SESSION}:")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key as it is kept."""

    id: str  # not a secret: limits name the key by it
    project: str  # "" of an admin key
    digest: str  # SHA-256 in hex; the key itself is not kept
    name: str = ""  # the operator's own, for lists
    scopes: Sequence[str] = ()  # none: everything but what is in ONLY_NAMED
    models: Sequence[str] = ()  # none: all models
    expires_at: float | None = None  # Unix seconds; None: never
    revoked: bool = False
    limited: Sequence[LimitedSubject] = ()  # itself, and its project with all its keys together

    def opens(self, now: float) -> bool:
        """Whether it is good at this time, in Unix seconds."""
        return not self.revoked and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class SessionPass:
    """A session that a page of this server means to come in by, and the project it wants to be in."""

    key: str = field(repr=False)  # of Django's session; a secret
    project: str  # "" for the default one


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks: a project, by one of its keys; by none where nobody is asked for one.

    A user of the admin comes in by a session, on a page of this server.
    """

    project: str = DEFAULT_PROJECT
    key: KeyRecord | None = None  # None: nobody is asked for a key, or it is a user of the admin
    key_id: str = ""  # of its key, "session:7" for the user 7 of the admin, "" for none
    # The id of a user's session, "" for everybody else. It is a secret, so no `repr` shows it.
    session: str = field(default="", repr=False)
    user: str = ""  # the id of the session's user
    scopes: Sequence[str] = ()  # none: everything but what is in ONLY_NAMED
    models: Sequence[str] = ()  # none: all models
    limited: Sequence[LimitedSubject] = ()  # whose limits hold for its requests; nobody's where no key is asked for

    @classmethod
    def by_key(cls, key: KeyRecord) -> "Caller":
        """Return the owner of a key."""
        return cls(
            project=key.project, key=key, key_id=key.id, scopes=key.scopes, models=key.models, limited=key.limited
        )

    @classmethod
    def by_session(
        cls, project: str, session: str, user: str, *, scopes: Sequence[str], limited: Sequence[LimitedSubject] = ()
    ) -> "Caller":
        """Return a user of the admin, by the ids of the session and of the user."""
        key_id = f"{BY_SESSION}:{user}"
        return cls(project=project, session=session, user=user, key_id=key_id, scopes=scopes, limited=limited)

    @property
    def is_known(self) -> bool:
        """Whether it was asked who it is."""
        return self.key is not None or bool(self.session)

    def check_scope(self, scope: str | None) -> None:
        """Raise `ApiError` (403) where the key is not made for this; None is for everybody."""
        if scope is None or scope in self.scopes:
            return
        # Before all else: those who are not asked for a key have no scopes, and may not do this either.
        if scope in MANAGES:
            raise needs_admin_key()
        if set(MANAGES) & set(self.scopes):
            raise only_manages()
        if self.scopes or (scope in ONLY_NAMED and self.is_known):
            raise missing_scope(scope)


NOBODY_ASKED = Caller()


def new_secret(random_bytes: Callable[[int], bytes], *, start: str = START) -> str:
    """Return a new key, as it is shown to its owner; `random_bytes(n)` returns n bytes that nobody can guess."""
    return start + urlsafe_b64encode(random_bytes(_RANDOM_BYTES)).decode().rstrip("=")


def digest_of(secret: str) -> str:
    """Return the digest of a key, which is kept in its place."""
    # Headers may hold any bytes, so a wrong key may have surrogates: it is hashed like any other, and found nowhere.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def prefix_of(secret: str) -> str:
    """Return the beginning of a key, by which people tell keys apart."""
    start = ADMIN_START if secret.startswith(ADMIN_START) else START
    return secret[: len(start) + _SHOWN]


def names_in(text: str) -> list[str]:
    """Read names, separated by commas, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def unknown_scopes(scopes: Iterable[str]) -> list[str]:
    """Return those that are not scopes."""
    return [scope for scope in scopes if scope not in SCOPES]


def _unauthorized(message: str) -> ApiError:
    """Who asks has no key that opens (401)."""
    error = ApiError(message, status=401, type="authentication_error", code="invalid_api_key")
    return error.with_headers({"www-authenticate": 'Bearer realm="respsite"'})


def no_api_key() -> ApiError:
    """A request without a key."""
    return _unauthorized(
        "You didn't provide an API key. Provide one in the Authorization header, with Bearer authentication "
        "('Authorization: Bearer YOUR_KEY'). The operator of this server makes keys with 'respsite manage create_key'."
    )


def no_admin_key() -> ApiError:
    """A request without a key for what only admin keys open, also where nobody else is asked for one."""
    return _unauthorized(
        "This path needs an admin key, always: provide one in the Authorization header, with Bearer authentication "
        "('Authorization: Bearer sk-admin-...'). The operator of this server makes them with 'respsite manage "
        "create_key --admin'."
    )


def incorrect_api_key(secret: str) -> ApiError:
    """A key that is unknown, expired or revoked: which of these is nobody's business."""
    # So that its owner knows which one it is, and a log gives nothing away. Characters that do not print would garble a
    # line of a log, and surrogates cannot be written at all.
    printed = "".join(each if each.isascii() and each.isprintable() else "?" for each in secret[:_MAX_SHOWN])
    shown = printed[:6] if len(secret) > _MAX_SHOWN else printed[:2]
    return _unauthorized(
        f"Incorrect API key provided: {shown}***. It is unknown here, has expired or was revoked, or its "
        "project is archived: ask the operator of this server for another one."
    )


def key_revoked() -> ApiError:
    """The key that a connection was opened with opens no more."""
    return _unauthorized("The API key of this connection was revoked or has expired. Connect again with another one.")


def session_over() -> ApiError:
    """The session that a connection was opened with is over, or its user may no longer come in."""
    return _unauthorized("The session of this connection is over. Sign in again, then connect again.")


def missing_scope(*scopes: str, param: str | None = None) -> ApiError:
    """A key that is not made for this (403); `param` names the field that needs it, None: the whole request."""
    why = f" '{param}' names what they are needed for." if param else ""
    return forbidden(
        f"You have insufficient permissions for this operation. Missing scopes: {', '.join(scopes)}.{why} The operator "
        "of this server makes keys, and says what each may do.",
        code="missing_scope",
        param=param,
    )


def needs_admin_key() -> ApiError:
    """A key of a project, or a session, where only admin keys open (403)."""
    return forbidden(
        "This path needs an admin key ('sk-admin-...'): it manages projects and their keys. No other key opens it, "
        "whatever its scopes. The operator of this server makes admin keys with 'respsite manage create_key --admin'.",
        code="missing_scope",
    )


def only_manages() -> ApiError:
    """An admin key where a key of a project is needed (403)."""
    return forbidden(
        "An admin key opens /v1/organization only, to manage projects and their keys. Use a key of a project here: "
        "POST /v1/organization/projects/{project_id}/service_accounts makes one, and so does 'respsite manage "
        "create_key --project NAME'.",
        code="missing_scope",
    )


def model_not_allowed(model: str, allowed: Sequence[str]) -> ApiError:
    """A key that may not use this model (403)."""
    return forbidden(
        f"This API key does not have access to the model '{model[:80]}'. It may use: {', '.join(allowed)}.",
        code="model_not_found",
        param="model",
    )
