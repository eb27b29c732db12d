"""The organization as data: what a request makes or changes of projects and keys, and the errors of these.

The names are OpenAI's. A service account is one key of a project here: it has the key's id, and goes with it. So its
creation makes a key, as OpenAI's does, and each key of a project has such an owner.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from responses_app.protocol.api_keys import SCOPES
from responses_app.protocol.errors import ApiError, invalid_request, invalid_value, not_found
from responses_app.protocol.fields import ClientModel, Refused, Text
from responses_app.protocol.retention import FOR_EVER, MAX_HOURS, NEVER

ORGANIZATION = "organization"  # the name of all projects together, in logs and in the audit trail
MAX_PROJECT_NAME = 256  # characters
MAX_KEY_NAME = 100
MAX_KEY_SECONDS = 10 * 365 * 86_400  # ten years
Query = Mapping[str, Sequence[str]]  # all values of each name
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


class NewAdminKey(ClientModel):
    """The body of the creation of an admin key."""

    name: KeyName
    expires_in_seconds: Seconds | None = None


class NewRetention(ClientModel):
    """The body that sets how long a project keeps what it stores; see `protocol.retention`."""

    own: ClassVar = ("retention_hours",)

    retention_type: Text
    retention_hours: Annotated[int, Field(ge=1, le=MAX_HOURS)] | None = None


MAX_CENTS = 10**15  # of a spend limit


class NewSpendLimit(ClientModel):
    """The body that limits what is spent in a calendar month of UTC."""

    currency: Text
    interval: Text
    threshold_amount: Annotated[int, Field(ge=0, le=MAX_CENTS)]  # hundredths of the currency


def cents_of(fields: NewSpendLimit, currency: str) -> int:
    """Return the limit; `currency` is that of the prices. Raises `ApiError`."""
    if fields.currency.lower() != currency:
        raise invalid_value(
            "currency", f"{fields.currency[:80]!r}. The prices of this server are in {currency.upper()!r}."
        )
    if fields.interval != "month":
        raise invalid_value("interval", f"{fields.interval[:80]!r}. Supported values are: 'month'.")
    return fields.threshold_amount


def no_spend_limit() -> ApiError:
    """There is no such limit (404)."""
    return not_found("There is no spend limit here. POST to this path sets one.", code="spend_limit_not_found")


_RETENTIONS = {"organization_default": None, "none": FOR_EVER, "zero_data_retention": NEVER}


def hours_of(fields: NewRetention) -> int | None:
    """Return how long is meant, as `protocol.retention` has it. Raises `ApiError`."""
    name = fields.retention_type
    if name not in _RETENTIONS:
        why = "This server monitors no abuse. " if name.endswith(("monitoring", "enhanced_zero_data_retention")) else ""
        raise invalid_value(
            "retention_type",
            f"{name[:80]!r}. {why}Supported values are: 'organization_default' (as the server's settings say), 'none' "
            "(for ever, or for 'retention_hours') and 'zero_data_retention' (nothing is kept).",
        )
    if fields.retention_hours is None:
        return _RETENTIONS[name]
    if name != "none":
        raise invalid_value("retention_hours", f"It needs the 'retention_type' 'none', and this one is {name!r}.")
    return fields.retention_hours


def scopes_of(named: Sequence[str]) -> Sequence[str]:
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


def parse_include_archived(query: Query) -> bool:
    """Return whether archived projects are wanted, too. Raises `ApiError`."""
    value = (query.get("include_archived") or ["false"])[-1]
    if value not in ("true", "false"):
        raise invalid_value("include_archived", f"{value[:80]!r}. Supported values are: 'true' and 'false'.")
    return value == "true"


def parse_access(query: Query) -> str:
    """Return keys of owners with which access are wanted. Raises `ApiError`."""
    value = (query.get("owner_project_access") or ["any"])[-1]
    if value not in ("active", "inactive", "any"):
        raise invalid_value(
            "owner_project_access", f"{value[:80]!r}. Supported values are: 'active', 'inactive' and 'any'."
        )
    return value


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
