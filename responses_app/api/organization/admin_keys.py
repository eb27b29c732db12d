"""Admin keys, `/v1/organization/admin_api_keys`.

All of them may be revoked here, also the one that asks, and the last one: the command line can always make another.
"""

from functools import partial
from typing import Literal

from typing_extensions import TypedDict

from responses_app.protocol.fields import validate
from responses_app.protocol.organization import NewAdminKey, admin_key_not_found
from responses_app.protocol.requests.pages import page_of
from responses_app.stores.organization import ManagedKey
from responses_app.web.endpoint import PAGED
from responses_app.web.http import ApiRequest, or_raise, read_json
from responses_app.web.organization import organization, page_asked, redacted, who
from responses_app.wiring.site import get_site


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


async def _create(request: ApiRequest) -> CreatedAdminApiKey:
    site = get_site()
    fields = await read_json(request, partial(validate, NewAdminKey), site.reader)
    new = await site.organization.create_admin_key(fields.name, seconds=fields.expires_in_seconds, by=who(request))
    return {**_shown(new.key), "value": new.secret}


async def _list(request: ApiRequest) -> AdminApiKeyList:
    page, part = page_asked(request)
    return page_of(await get_site().organization.admin_keys(part), page, _shown)


async def _get(request: ApiRequest, key_id: str) -> AdminApiKey:
    return _shown(or_raise(await get_site().organization.admin_key(key_id), admin_key_not_found(key_id)))


async def _delete(request: ApiRequest, key_id: str) -> DeletedAdminApiKey:
    if not await get_site().organization.revoke_admin_key(key_id, by=who(request)):
        raise admin_key_not_found(key_id)
    return {"id": key_id, "object": "organization.admin_api_key.deleted", "deleted": True}


def _shown(key: ManagedKey) -> AdminApiKey:
    return {
        "id": key.id,
        "object": "organization.admin_api_key",
        "name": key.name,
        "redacted_value": redacted(key.prefix),
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
        "owner": {"type": "user", "object": "organization.user", "name": "operator", "role": "owner"},
    }


_KEYS = "/v1/organization/admin_api_keys"
_KEY = f"{_KEYS}/{{key_id}}"

ENDPOINTS = (
    organization("GET", _KEYS, _list, "admin-api-keys-list", "List admin keys", takes=PAGED),
    organization("POST", _KEYS, _create, "admin-api-keys-create", "Create an admin key", body=NewAdminKey),
    organization("GET", _KEY, _get, "admin-api-keys-get", "Retrieve an admin key"),
    organization("DELETE", _KEY, _delete, "admin-api-keys-delete", "Revoke an admin key"),
)
