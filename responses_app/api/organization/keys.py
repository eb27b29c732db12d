"""Keys of a project, `…/projects/{project_id}/api_keys`, and their owners, `…/service_accounts`.

A service account is one key here, and has its id: see `protocol.organization`.
"""

from functools import partial
from typing import Literal

from typing_extensions import TypedDict

from responses_app.protocol.fields import validate
from responses_app.protocol.organization import (
    KeyChanges,
    NewServiceAccount,
    ServiceAccountChanges,
    account_not_found,
    key_not_found,
    parse_access,
    project_not_found,
)
from responses_app.protocol.requests.pages import page_of
from responses_app.stores.organization import ManagedKey
from responses_app.web.endpoint import PAGED, Parameter, text
from responses_app.web.http import ApiRequest, or_raise, read_json
from responses_app.web.organization import PROJECT, found_project, organization, page_asked, redacted, who
from responses_app.wiring.site import get_site


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


async def _list_keys(request: ApiRequest, project_id: str) -> ProjectApiKeyList:
    page, part = page_asked(request)
    access = parse_access(request.query)
    await found_project(project_id)
    # A key without access is a revoked one, and these are gone.
    rows = [] if access == "inactive" else await get_site().organization.keys(project_id, part)
    return page_of(rows, page, _shown_key)


async def _get_key(request: ApiRequest, project_id: str, key_id: str) -> ProjectApiKey:
    await found_project(project_id)
    return _shown_key(or_raise(await get_site().organization.key(project_id, key_id), key_not_found(key_id)))


async def _update_key(request: ApiRequest, project_id: str, key_id: str) -> ProjectApiKey:
    site = get_site()
    await _get_key(request, project_id, key_id)  # before the body is judged
    changes = await read_json(request, partial(validate, KeyChanges), site.reader)
    changed = await site.organization.change_key(project_id, key_id, changes, by=who(request))
    return _shown_key(or_raise(changed, key_not_found(key_id)))


async def _delete_key(request: ApiRequest, project_id: str, key_id: str) -> DeletedProjectApiKey:
    await found_project(project_id)
    if not await get_site().organization.revoke_key(project_id, key_id, by=who(request)):
        raise key_not_found(key_id)
    return {"id": key_id, "object": "organization.project.api_key.deleted", "deleted": True}


async def _create_account(request: ApiRequest, project_id: str) -> CreatedServiceAccount:
    site = get_site()
    await found_project(project_id)
    fields = await read_json(request, partial(validate, NewServiceAccount), site.reader)
    made = await site.organization.create_key(
        project_id, fields.name, seconds=fields.expires_in_seconds, by=who(request)
    )
    new = or_raise(made, project_not_found(project_id))
    key: ServiceAccountKey = {
        "id": new.key.id,
        "object": "organization.project.service_account.api_key",
        "name": new.key.name,
        "value": new.secret,
        "created_at": new.key.created_at,
        "expires_at": new.key.expires_at,
    }
    return {**_shown_account(new.key), "api_key": key}


async def _list_accounts(request: ApiRequest, project_id: str) -> ServiceAccountList:
    page, part = page_asked(request)
    await found_project(project_id)
    return page_of(await get_site().organization.keys(project_id, part), page, _shown_account)


async def _get_account(request: ApiRequest, project_id: str, account_id: str) -> ServiceAccount:
    await found_project(project_id)
    key = await get_site().organization.key(project_id, account_id)
    return _shown_account(or_raise(key, account_not_found(account_id)))


async def _update_account(request: ApiRequest, project_id: str, account_id: str) -> ServiceAccount:
    site = get_site()
    account = await _get_account(request, project_id, account_id)  # before the body is judged
    fields = await read_json(request, partial(validate, ServiceAccountChanges), site.reader)
    if fields.name is None:
        return account
    renamed = await site.organization.rename_key(project_id, account_id, fields.name, by=who(request))
    return _shown_account(or_raise(renamed, account_not_found(account_id)))


async def _delete_account(request: ApiRequest, project_id: str, account_id: str) -> DeletedServiceAccount:
    await found_project(project_id)
    if not await get_site().organization.revoke_key(project_id, account_id, by=who(request)):
        raise account_not_found(account_id)
    return {"id": account_id, "object": "organization.project.service_account.deleted", "deleted": True}


def _shown_key(key: ManagedKey) -> ProjectApiKey:
    account: KeyOwnerAccount = {"id": key.id, "name": key.name, "created_at": key.created_at, "role": "member"}
    return {
        "id": key.id,
        "object": "organization.project.api_key",
        "name": key.name,
        "redacted_value": redacted(key.prefix),
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
        "scopes": list(key.scopes),
        "owner": {"type": "service_account", "service_account": account},
        "owner_project_access": "active",
    }


def _shown_account(key: ManagedKey) -> ServiceAccount:
    return {
        "id": key.id,
        "object": "organization.project.service_account",
        "name": key.name,
        "role": "member",
        "created_at": key.created_at,
    }


_KEYS, _ACCOUNTS = f"{PROJECT}/api_keys", f"{PROJECT}/service_accounts"
_KEY, _ACCOUNT = f"{_KEYS}/{{api_key_id}}", f"{_ACCOUNTS}/{{service_account_id}}"
_ACCESS = Parameter(
    "owner_project_access",
    "Keys whose owner has access to the project; all that are listed have.",
    text(enum=["active", "inactive", "any"], default="any"),
)

ENDPOINTS = (
    organization("GET", _KEYS, _list_keys, "list-project-api-keys", "List a project's keys", takes=(*PAGED, _ACCESS)),
    organization("GET", _KEY, _get_key, "retrieve-project-api-key", "Retrieve a key of a project"),
    organization(
        *("POST", _KEY, _update_key, "modify-project-api-key", "Change what a key may do, and until when"),
        body=KeyChanges,
    ),
    organization("DELETE", _KEY, _delete_key, "delete-project-api-key", "Revoke a key of a project"),
    organization(
        "GET", _ACCOUNTS, _list_accounts, "list-project-service-accounts", "List service accounts", takes=PAGED
    ),
    organization(
        *("POST", _ACCOUNTS, _create_account, "create-project-service-account", "Create a service account and its key"),
        body=NewServiceAccount,
    ),
    organization("GET", _ACCOUNT, _get_account, "retrieve-project-service-account", "Retrieve a service account"),
    organization(
        *("POST", _ACCOUNT, _update_account, "modify-project-service-account", "Rename a service account"),
        body=ServiceAccountChanges,
    ),
    organization(
        *("DELETE", _ACCOUNT, _delete_account, "delete-project-service-account"),
        "Delete a service account, and revoke its key",
    ),
)
