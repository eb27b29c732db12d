"""The fields of requests and answers of `/v1/organization/projects` and its keys, and the errors that are theirs alone.

The names are OpenAI's. A service account is one key of a project here: it has the key's id, and goes with it. So its
creation makes a key, as OpenAI's does, and each key of a project has such an owner.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from responses_app.kit.clock import unix
from responses_app.kit.retention import FOR_EVER, MAX_HOURS, NEVER
from responses_app.protocol.api_keys import SCOPES
from responses_app.protocol.errors import ApiError, invalid_request, invalid_value, not_found
from responses_app.protocol.fields import ClientModel, Refused, Text

if TYPE_CHECKING:
    from responses_app.resources.projects import model

ORGANIZATION = "organization"  # the name of all projects together, in logs and in the audit trail
NO_PROJECT = ""  # of admin keys
MAX_PROJECT_NAME = 256  # characters
MAX_KEY_NAME = 100
MAX_KEY_SECONDS = 10 * 365 * 86_400  # ten years
READS_ALL = "api.all.read"  # OpenAI's name of all scopes that read
_READS = tuple(scope for scope in SCOPES if scope.startswith("api.") and scope.endswith(".read"))


def _printable(value: str) -> str:
    """Take a text that fits in one line of a list or a log."""
    if not value.isprintable() or not value.strip():
        raise PydanticCustomError("printable", "It takes printable characters, and not only spaces.")
    return value


ProjectName = Annotated[Text, Field(min_length=1, max_length=MAX_PROJECT_NAME), AfterValidator(_printable)]
KeyName = Annotated[Text, Field(min_length=1, max_length=MAX_KEY_NAME), AfterValidator(_printable)]
Seconds = Annotated[int, Field(ge=1, le=MAX_KEY_SECONDS)]

_ON_SITE = "All data of this server is in its own database. Leave it out."
_ELSEWHERE = {
    "external_key_id": Refused("This server does not encrypt projects with keys of others. Leave it out."),
    "geography": Refused(_ON_SITE),
}


class NewProject(ClientModel):
    """The body of the creation of a project."""

    refused: ClassVar = {**_ELSEWHERE, "residency": Refused(_ON_SITE)}

    name: ProjectName


class ProjectChanges(ClientModel):
    """The body of an update of a project; its id stays."""

    refused: ClassVar = _ELSEWHERE

    name: ProjectName | None = None

    def columns(self, project_id: str) -> dict[str, object]:
        """Return the columns of a project that were sent."""
        return {} if self.name is None else {"title": "" if self.name == project_id else self.name}


class NewServiceAccount(ClientModel):
    """The body of the creation of a service account, and of its key."""

    refused: ClassVar = {
        "create_service_account_only": Refused("A service account is a key here, so there is none without one."),
    }

    name: KeyName
    expires_in_seconds: Seconds | None = None  # None: the key does not expire


class ServiceAccountChanges(ClientModel):
    """The body of an update of a service account."""

    refused: ClassVar = {
        "role": Refused("What a key may do are its scopes: update the key.", takes=(False, "member")),
    }

    beside: ClassVar = ("project_id",)  # stands in the path

    name: KeyName | None = None


class KeyChanges(ClientModel):
    """The body of an update of a key of a project."""

    beside: ClassVar = ("project_id",)  # stands in the path

    expires_in_seconds: Seconds | None = None  # from now on; None: it stays as it is
    scopes: list[str] | None = Field(default=None, max_length=len(SCOPES) + 1)  # instead of those it has

    def columns(self) -> dict[str, object]:
        """Return the columns of a key that were sent. Raises `ApiError` for a name that is no scope."""
        return {} if self.scopes is None else {"scopes": scopes_of(self.scopes)}


class NewAdminKey(ClientModel):
    """The body of the creation of an admin key."""

    name: KeyName
    expires_in_seconds: Seconds | None = None


_RETENTIONS = {"organization_default": None, "none": FOR_EVER, "zero_data_retention": NEVER}


class NewRetention(ClientModel):
    """The body that sets how long a project keeps what it stores; see `protocol.retention`."""  # now `kit.retention`

    own: ClassVar = ("retention_hours",)

    retention_type: Text
    retention_hours: Annotated[int, Field(ge=1, le=MAX_HOURS)] | None = None

    def hours(self) -> int | None:
        """Return the hours, as `kit.retention` has them. Raises `ApiError`."""
        name = self.retention_type
        if name not in _RETENTIONS:
            monitors = name.endswith(("monitoring", "enhanced_zero_data_retention"))
            why = "This server monitors no abuse. " if monitors else ""
            raise invalid_value(
                "retention_type",
                f"{name[:80]!r}. {why}Supported values are: 'organization_default' (as the server's settings say), "
                "'none' (for ever, or for 'retention_hours') and 'zero_data_retention' (nothing is kept).",
            )
        if self.retention_hours is None:
            return _RETENTIONS[name]
        if name != "none":
            raise invalid_value("retention_hours", f"It needs the 'retention_type' 'none', and this one is {name!r}.")
        return self.retention_hours


MAX_CENTS = 10**15  # of a spend limit


class NewSpendLimit(ClientModel):
    """The body that limits what is spent in a calendar month of UTC."""

    currency: Text
    interval: Text
    threshold_amount: Annotated[int, Field(ge=0, le=MAX_CENTS)]  # hundredths of the currency

    def cents(self, currency: str) -> int:
        """Return the limit; `currency` is that of the prices. Raises `ApiError`."""
        if self.currency.lower() != currency:
            shown = currency.upper()
            raise invalid_value("currency", f"{self.currency[:80]!r}. The prices of this server are in {shown!r}.")
        if self.interval != "month":
            raise invalid_value("interval", f"{self.interval[:80]!r}. Supported values are: 'month'.")
        return self.threshold_amount


def scopes_of(named: Sequence[str]) -> list[str]:
    """Return the scopes that a request names, each once. Raises `ApiError` for a name that is none."""
    scopes: dict[str, None] = {}
    for index, name in enumerate(named):
        if name == READS_ALL:
            scopes |= dict.fromkeys(_READS)
        elif name in SCOPES:
            scopes[name] = None
        else:
            raise invalid_value(
                f"scopes[{index}]", f"{name[:80]!r}. Supported values are: {', '.join((READS_ALL, *SCOPES))}."
            )
    return list(scopes)


class Project(TypedDict):
    """A project of the organization."""

    id: str
    object: Literal["organization.project"]
    name: str
    created_at: int
    archived_at: int | None
    status: Literal["active", "archived"]


class ProjectList(TypedDict):
    """A part of a list of projects. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[Project]
    first_id: str
    last_id: str
    has_more: bool


class KeyOwnerAccount(TypedDict):
    """The service account that owns a key."""

    id: str
    name: str
    created_at: int
    role: Literal["member"]


class KeyOwner(TypedDict):
    """Who owns a key."""

    type: Literal["service_account"]
    service_account: KeyOwnerAccount


class ProjectApiKey(TypedDict):
    """A key of a project. Without `scopes` it may do everything with it."""

    id: str
    object: Literal["organization.project.api_key"]
    name: str
    redacted_value: str
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    scopes: list[str]
    owner: KeyOwner
    owner_project_access: Literal["active"]


class ProjectApiKeyList(TypedDict):
    """A part of a list of keys of a project. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[ProjectApiKey]
    first_id: str
    last_id: str
    has_more: bool


class DeletedProjectApiKey(TypedDict):
    """A key is revoked."""

    id: str
    object: Literal["organization.project.api_key.deleted"]
    deleted: Literal[True]


class ServiceAccount(TypedDict):
    """A service account of a project."""

    id: str
    object: Literal["organization.project.service_account"]
    name: str
    role: Literal["member"]
    created_at: int


class ServiceAccountList(TypedDict):
    """A part of a list of service accounts. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[ServiceAccount]
    first_id: str
    last_id: str
    has_more: bool


class ServiceAccountKey(TypedDict):
    """The key of a new service account; its value is shown this once."""

    id: str
    object: Literal["organization.project.service_account.api_key"]
    name: str
    value: str
    created_at: int
    expires_at: int | None


class CreatedServiceAccount(ServiceAccount):
    """A service account that was just made, with its key."""

    api_key: ServiceAccountKey


class DeletedServiceAccount(TypedDict):
    """A service account is gone, and its key is revoked."""

    id: str
    object: Literal["organization.project.service_account.deleted"]
    deleted: Literal[True]


class AdminKeyOwner(TypedDict):
    """Who owns an admin key: the operator of the server."""

    type: Literal["user"]
    object: Literal["organization.user"]
    name: Literal["operator"]
    role: Literal["owner"]


class AdminApiKey(TypedDict):
    """An admin key."""

    id: str
    object: Literal["organization.admin_api_key"]
    name: str
    redacted_value: str
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    owner: AdminKeyOwner


class AdminApiKeyList(TypedDict):
    """A part of a list of admin keys. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[AdminApiKey]
    first_id: str
    last_id: str
    has_more: bool


class CreatedAdminApiKey(AdminApiKey):
    """An admin key that was just made; its value is shown this once."""

    value: str


class DeletedAdminApiKey(TypedDict):
    """An admin key is revoked."""

    id: str
    object: Literal["organization.admin_api_key.deleted"]
    deleted: Literal[True]


class ProjectDataRetention(TypedDict):
    """How long a project keeps what it stores."""

    object: Literal["project.data_retention"]
    # As the server's settings say, for ever or for some hours, or not at all.
    type: Literal["organization_default", "none", "zero_data_retention"]
    retention_hours: int | None  # null: there is no such number


class SpendLimitEnforcement(TypedDict):
    """Whether requests are refused now since the limit is reached."""

    status: Literal["inactive", "enforcing"]


class SpendLimit(TypedDict):
    """What may be spent in a calendar month of UTC."""

    threshold_amount: int  # cents
    currency: str
    interval: Literal["month"]
    enforcement: SpendLimitEnforcement


class OrganizationSpendLimit(SpendLimit):
    """What all projects together may spend in a calendar month of UTC."""

    object: Literal["organization.spend_limit"]


class ProjectSpendLimit(SpendLimit):
    """What a project may spend in a calendar month of UTC."""

    object: Literal["project.spend_limit"]


class DeletedOrganizationSpendLimit(TypedDict):
    """All projects together may spend what they like."""

    object: Literal["organization.spend_limit.deleted"]
    deleted: Literal[True]


class DeletedProjectSpendLimit(TypedDict):
    """The project may spend what it likes, as far as the organization may."""

    object: Literal["project.spend_limit.deleted"]
    deleted: Literal[True]


def shown_project(row: "model.Project") -> Project:
    """Return a project as clients see it."""
    return {
        "id": row.pk,
        "object": "organization.project",
        "name": row.title or row.pk,
        "created_at": unix(row.created_at),
        "archived_at": _unix(row.archived_at),
        "status": "active" if row.archived_at is None else "archived",
    }


def shown_key(row: "model.ApiKey") -> ProjectApiKey:
    """Return a key of a project as clients see it."""
    created_at = unix(row.created_at)
    account: KeyOwnerAccount = {"id": row.id, "name": row.name, "created_at": created_at, "role": "member"}
    return {
        "id": row.id,
        "object": "organization.project.api_key",
        "name": row.name,
        "redacted_value": f"{row.prefix}...",
        "created_at": created_at,
        "expires_at": _unix(row.expires_at),
        "last_used_at": _unix(row.last_used_at),
        "scopes": list(row.scopes),
        "owner": {"type": "service_account", "service_account": account},
        "owner_project_access": "active",
    }


def shown_account(row: "model.KeyColumns") -> ServiceAccount:
    """Return the service account of a key."""
    return {
        "id": row.id,
        "object": "organization.project.service_account",
        "name": row.name,
        "role": "member",
        "created_at": unix(row.created_at),
    }


def shown_new_account(secret: str, row: "model.KeyColumns") -> CreatedServiceAccount:
    """Return a new service account with its key, whose secret is shown this once."""
    key: ServiceAccountKey = {
        "id": row.id,
        "object": "organization.project.service_account.api_key",
        "name": row.name,
        "value": secret,
        "created_at": unix(row.created_at),
        "expires_at": _unix(row.expires_at),
    }
    return {**shown_account(row), "api_key": key}


def shown_admin_key(row: "model.KeyColumns") -> AdminApiKey:
    """Return an admin key as clients see it."""
    return {
        "id": row.id,
        "object": "organization.admin_api_key",
        "name": row.name,
        "redacted_value": f"{row.prefix}...",
        "created_at": unix(row.created_at),
        "expires_at": _unix(row.expires_at),
        "last_used_at": _unix(row.last_used_at),
        "owner": {"type": "user", "object": "organization.user", "name": "operator", "role": "owner"},
    }


def shown_retention(row: "model.Project") -> ProjectDataRetention:
    """Return how long a project keeps what it stores."""
    hours = row.retention_hours
    return {
        "object": "project.data_retention",
        "type": "organization_default" if hours is None else "zero_data_retention" if hours == NEVER else "none",
        "retention_hours": None if hours in (FOR_EVER, NEVER) else hours,
    }


def _unix(at: datetime | None) -> int | None:
    return None if at is None else unix(at)


def no_spend_limit() -> ApiError:
    """There is no such limit (404)."""
    return not_found("There is no spend limit here. POST to this path sets one.", code="spend_limit_not_found")


def project_not_found(project_id: str) -> ApiError:
    """There is no such project (404)."""
    return not_found(f"No project found with id '{project_id[:80]}'.", param="project_id", code="project_not_found")


def key_not_found(key_id: str, *, param: str = "api_key_id", kind: str = "API key") -> ApiError:
    """The project has no such key, or not any more (404)."""
    return not_found(f"No {kind} found with id '{key_id[:80]}'.", param=param, code="key_not_found")


def account_not_found(account_id: str) -> ApiError:
    """The project has no such service account, or not any more (404)."""
    return key_not_found(account_id, param="service_account_id", kind="service account")


def admin_key_not_found(key_id: str) -> ApiError:
    """There is no such admin key, or not any more (404)."""
    return key_not_found(key_id, param="key_id", kind="admin key")


class Unchangeable(Exception):
    """Something cannot be made or changed as things are; `error` says why."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def project_exists(name: str) -> Unchangeable:
    """There is a project of this name (400); a 409 would have SDKs send it again."""
    return Unchangeable(
        invalid_request(
            f"There is a project '{name[:80]}' already, perhaps an archived one. Choose another name.",
            param="name",
            code="project_exists",
        )
    )


def project_archived(project_id: str) -> Unchangeable:
    """The project is archived, and stays so (400)."""
    return Unchangeable(
        invalid_request(
            f"The project '{project_id[:80]}' is archived, which is final: neither it nor its keys can be changed, "
            "and it gets no new ones. Use another project.",
            param="project_id",
            code="project_archived",
        )
    )


def default_project_stays() -> Unchangeable:
    """The default project cannot be archived (400)."""
    return Unchangeable(
        invalid_request(
            "The project 'default' cannot be archived: it is that of everybody who is not asked for a key. Delete its "
            "keys instead.",
            param="project_id",
            code="invalid_value",
        )
    )


def key_expired(key_id: str) -> Unchangeable:
    """A key that has expired is not changed any more (400)."""
    return Unchangeable(
        invalid_request(
            f"The API key '{key_id[:80]}' has expired. Make another one.", param="api_key_id", code="key_expired"
        )
    )


def too_many(what: str, most: int, instead: str) -> Unchangeable:
    """There are as many as there may be (400)."""
    return Unchangeable(invalid_request(f"There may be {most:,} {what}. {instead}", code="organization_full"))
