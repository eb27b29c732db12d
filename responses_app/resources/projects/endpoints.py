"""`/v1/organization/projects`, with its keys, retention and spend limits, and `/v1/organization/admin_api_keys`.

A project that is archived stays so: its keys are revoked, its data is kept. Amounts are cents of PRICES_CURRENCY, which
is the only currency. Who may spend more decides `runs.spending`.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from responses_app.kit.retention import written
from responses_app.protocol.errors import ApiError, invalid_value
from responses_app.protocol.fields import ClientModel, validate
from responses_app.protocol.prices import no_prices
from responses_app.protocol.requests.pages import page_of, parse_list_query
from responses_app.resources.audit.fields import Action
from responses_app.resources.projects import fields
from responses_app.web.endpoint import PAGED, Parameter, Refusals, text
from responses_app.web.http import ApiRequest, or_raise, read_json
from responses_app.web.organization import organization, who
from responses_app.wiring.site import get_site

if TYPE_CHECKING:
    from responses_app.resources.projects import model

Body = TypeVar("Body", bound=ClientModel)


async def _create(request: ApiRequest) -> fields.Project:
    body = await _body(request, fields.NewProject)
    return fields.shown_project(await get_site().projects.create_project(body, by=who(request)))


async def _list(request: ApiRequest) -> fields.ProjectList:
    page = parse_list_query(request.query)
    archived = _choice(request, "include_archived", "true", "false") == "true"
    return page_of(await get_site().projects.projects(page, archived=archived), page, fields.shown_project)


async def _get(request: ApiRequest, project_id: str) -> fields.Project:
    return fields.shown_project(await _project(project_id))


async def _update(request: ApiRequest, project_id: str) -> fields.Project:
    project = await _project(project_id)  # before the body is judged
    body = await _body(request, fields.ProjectChanges)
    if columns := body.columns(project_id):
        project = await _change(request, project_id, columns, Action.PROJECT_CHANGED)
    return fields.shown_project(project)


async def _archive(request: ApiRequest, project_id: str) -> fields.Project:
    archived = await get_site().projects.archive_project(project_id, by=who(request))
    return fields.shown_project(or_raise(archived, fields.project_not_found(project_id)))


async def _project(project_id: str) -> "model.Project":
    return or_raise(await get_site().projects.project(project_id), fields.project_not_found(project_id))


async def _change(
    request: ApiRequest, project_id: str, columns: Mapping[str, object], action: Action, **detail: object
) -> "model.Project":
    changed = await get_site().projects.change_project(project_id, columns, action, by=who(request), **detail)
    return or_raise(changed, fields.project_not_found(project_id))


async def _body(request: ApiRequest, model: type[Body]) -> Body:
    """Return the body of a request. Raises `ApiError`."""
    return await read_json(request, partial(validate, model), get_site().reader)


def _choice(request: ApiRequest, name: str, *choices: str) -> str:
    """Return one of these that a query has, the last one where it has none. Raises `ApiError`."""
    value = (request.query.get(name) or choices[-1:])[-1]
    if value not in choices:
        supported = ", ".join(map(repr, choices[:-1]))
        raise invalid_value(name, f"{value[:80]!r}. Supported values are: {supported} and {choices[-1]!r}.")
    return value


async def _list_keys(request: ApiRequest, project_id: str) -> fields.ProjectApiKeyList:
    page = parse_list_query(request.query)
    access = _choice(request, "owner_project_access", "active", "inactive", "any")
    await _project(project_id)
    # A key without access is a revoked one, and these are gone.
    rows = [] if access == "inactive" else await get_site().projects.keys(project_id, page)
    return page_of(rows, page, fields.shown_key)


async def _get_key(request: ApiRequest, project_id: str, key_id: str) -> fields.ProjectApiKey:
    return fields.shown_key(await _key(project_id, key_id, fields.key_not_found(key_id)))


async def _update_key(request: ApiRequest, project_id: str, key_id: str) -> fields.ProjectApiKey:
    missing = fields.key_not_found(key_id)
    await _key(project_id, key_id, missing)  # before the body is judged
    body = await _body(request, fields.KeyChanges)
    changed = await get_site().projects.change_key(project_id, key_id, body, by=who(request))
    return fields.shown_key(or_raise(changed, missing))


async def _delete_key(request: ApiRequest, project_id: str, key_id: str) -> fields.DeletedProjectApiKey:
    await _revoke(request, project_id, key_id, fields.key_not_found(key_id))
    return {"id": key_id, "object": "organization.project.api_key.deleted", "deleted": True}


async def _create_account(request: ApiRequest, project_id: str) -> fields.CreatedServiceAccount:
    await _project(project_id)
    body = await _body(request, fields.NewServiceAccount)
    created = await get_site().projects.create_key(project_id, body, by=who(request))
    return fields.shown_new_account(*or_raise(created, fields.project_not_found(project_id)))


async def _list_accounts(request: ApiRequest, project_id: str) -> fields.ServiceAccountList:
    page = parse_list_query(request.query)
    await _project(project_id)
    return page_of(await get_site().projects.keys(project_id, page), page, fields.shown_account)


async def _get_account(request: ApiRequest, project_id: str, account_id: str) -> fields.ServiceAccount:
    return fields.shown_account(await _key(project_id, account_id, fields.account_not_found(account_id)))


async def _update_account(request: ApiRequest, project_id: str, account_id: str) -> fields.ServiceAccount:
    missing = fields.account_not_found(account_id)
    row = await _key(project_id, account_id, missing)  # before the body is judged
    body = await _body(request, fields.ServiceAccountChanges)
    if body.name is not None:
        renamed = await get_site().projects.rename_key(project_id, account_id, body.name, by=who(request))
        row = or_raise(renamed, missing)
    return fields.shown_account(row)


async def _delete_account(request: ApiRequest, project_id: str, account_id: str) -> fields.DeletedServiceAccount:
    await _revoke(request, project_id, account_id, fields.account_not_found(account_id))
    return {"id": account_id, "object": "organization.project.service_account.deleted", "deleted": True}


async def _key(project_id: str, key_id: str, missing: ApiError) -> "model.KeyColumns":
    await _project(project_id)
    return or_raise(await get_site().projects.key(project_id, key_id), missing)


async def _revoke(request: ApiRequest, project_id: str, key_id: str, missing: ApiError) -> None:
    await _project(project_id)
    if not await get_site().projects.revoke_key(project_id, key_id, by=who(request)):
        raise missing


async def _create_admin_key(request: ApiRequest) -> fields.CreatedAdminApiKey:
    body = await _body(request, fields.NewAdminKey)
    secret, row = await get_site().projects.create_admin_key(body, by=who(request))
    return {**fields.shown_admin_key(row), "value": secret}


async def _list_admin_keys(request: ApiRequest) -> fields.AdminApiKeyList:
    page = parse_list_query(request.query)
    return page_of(await get_site().projects.keys(fields.NO_PROJECT, page), page, fields.shown_admin_key)


async def _get_admin_key(request: ApiRequest, key_id: str) -> fields.AdminApiKey:
    row = await get_site().projects.key(fields.NO_PROJECT, key_id)
    return fields.shown_admin_key(or_raise(row, fields.admin_key_not_found(key_id)))


async def _delete_admin_key(request: ApiRequest, key_id: str) -> fields.DeletedAdminApiKey:
    """Revoke a key, also the one that asks, and the last one: the command line can always make another."""
    if not await get_site().projects.revoke_key(fields.NO_PROJECT, key_id, by=who(request)):
        raise fields.admin_key_not_found(key_id)
    return {"id": key_id, "object": "organization.admin_api_key.deleted", "deleted": True}


async def _get_retention(request: ApiRequest, project_id: str) -> fields.ProjectDataRetention:
    return fields.shown_retention(await _project(project_id))


async def _update_retention(request: ApiRequest, project_id: str) -> fields.ProjectDataRetention:
    await _project(project_id)  # before the body is judged
    body = await _body(request, fields.NewRetention)
    hours = body.hours()
    columns, action = {"retention_hours": hours}, Action.RETENTION_CHANGED
    return fields.shown_retention(await _change(request, project_id, columns, action, retention=written(hours)))


async def _get_spend_limit(request: ApiRequest) -> fields.OrganizationSpendLimit:
    return await _of_all(or_raise(await get_site().projects.organization_spend_limit(), fields.no_spend_limit()))


async def _update_spend_limit(request: ApiRequest) -> fields.OrganizationSpendLimit:
    cents = await _cents(request)
    await get_site().projects.limit_all_spending(cents, by=who(request))
    return await _of_all(cents)


async def _delete_spend_limit(request: ApiRequest) -> fields.DeletedOrganizationSpendLimit:
    site = get_site()
    or_raise(await site.projects.organization_spend_limit(), fields.no_spend_limit())
    await site.projects.limit_all_spending(None, by=who(request))
    return {"object": "organization.spend_limit.deleted", "deleted": True}


async def _get_project_spend_limit(request: ApiRequest, project_id: str) -> fields.ProjectSpendLimit:
    project = await _project(project_id)
    return await _of_project(project_id, or_raise(project.monthly_spend_cents, fields.no_spend_limit()))


async def _update_project_spend_limit(request: ApiRequest, project_id: str) -> fields.ProjectSpendLimit:
    await _project(project_id)  # before the body is judged
    cents = await _cents(request)
    await _limit_spending(request, project_id, cents)
    return await _of_project(project_id, cents)


async def _delete_project_spend_limit(request: ApiRequest, project_id: str) -> fields.DeletedProjectSpendLimit:
    or_raise((await _project(project_id)).monthly_spend_cents, fields.no_spend_limit())
    await _limit_spending(request, project_id, None)
    return {"object": "project.spend_limit.deleted", "deleted": True}


async def _limit_spending(request: ApiRequest, project_id: str, cents: int | None) -> None:
    columns = {"monthly_spend_cents": cents}
    await _change(request, project_id, columns, Action.LIMITS_CHANGED, **columns)


async def _cents(request: ApiRequest) -> int:
    site = get_site()
    body = await _body(request, fields.NewSpendLimit)
    if not site.settings.prices:
        raise no_prices()
    return body.cents(site.settings.prices_currency)


async def _of_all(cents: int) -> fields.OrganizationSpendLimit:
    return {"object": "organization.spend_limit", **await _spend_limit(fields.ORGANIZATION, cents)}


async def _of_project(project_id: str, cents: int) -> fields.ProjectSpendLimit:
    return {"object": "project.spend_limit", **await _spend_limit(f"project:{project_id}", cents)}


async def _spend_limit(subject: str, cents: int) -> fields.SpendLimit:
    site = get_site()
    is_reached = await site.spending.is_reached(subject, cents)
    return {
        "threshold_amount": cents,
        "currency": site.settings.prices_currency.upper(),
        "interval": "month",
        "enforcement": {"status": "enforcing" if is_reached else "inactive"},
    }


_PROJECTS = "/v1/organization/projects"
_PROJECT = f"{_PROJECTS}/{{project_id}}"
_KEYS, _ACCOUNTS = f"{_PROJECT}/api_keys", f"{_PROJECT}/service_accounts"
_KEY, _ACCOUNT = f"{_KEYS}/{{api_key_id}}", f"{_ACCOUNTS}/{{service_account_id}}"
_ADMIN_KEYS = "/v1/organization/admin_api_keys"
_ADMIN_KEY = f"{_ADMIN_KEYS}/{{key_id}}"
_RETENTION = f"{_PROJECT}/data_retention"
_SPEND_LIMIT, _PROJECT_SPEND_LIMIT = "/v1/organization/spend_limit", f"{_PROJECT}/spend_limit"
_INCLUDE_ARCHIVED = Parameter(
    "include_archived", "Whether archived projects are listed, too.", {"type": "boolean", "default": False}
)
_ACCESS = Parameter(
    "owner_project_access",
    "Keys whose owner has access to the project; all that are listed have.",
    text(enum=["active", "inactive", "any"], default="any"),
)
REFUSALS: Refusals = {fields.Unchangeable: lambda problem, *_: problem.error}
_endpoint = partial(organization, refusals=REFUSALS)

ENDPOINTS = (
    _endpoint("GET", _PROJECTS, _list, "list-projects", "List projects", takes=(*PAGED, _INCLUDE_ARCHIVED)),
    _endpoint("POST", _PROJECTS, _create, "create-project", "Create a project", body=fields.NewProject),
    _endpoint("GET", _PROJECT, _get, "retrieve-project", "Retrieve a project"),
    _endpoint("POST", _PROJECT, _update, "modify-project", "Rename a project", body=fields.ProjectChanges),
    _endpoint("POST", f"{_PROJECT}/archive", _archive, "archive-project", "Archive a project for good"),
    _endpoint("GET", _KEYS, _list_keys, "list-project-api-keys", "List a project's keys", takes=(*PAGED, _ACCESS)),
    _endpoint("GET", _KEY, _get_key, "retrieve-project-api-key", "Retrieve a key of a project"),
    _endpoint(
        "POST",
        _KEY,
        _update_key,
        "modify-project-api-key",
        "Change what a key may do, and until when",
        body=fields.KeyChanges,
    ),
    _endpoint("DELETE", _KEY, _delete_key, "delete-project-api-key", "Revoke a key of a project"),
    _endpoint("GET", _ACCOUNTS, _list_accounts, "list-project-service-accounts", "List service accounts", takes=PAGED),
    _endpoint(
        "POST",
        _ACCOUNTS,
        _create_account,
        "create-project-service-account",
        "Create a service account and its key",
        body=fields.NewServiceAccount,
    ),
    _endpoint("GET", _ACCOUNT, _get_account, "retrieve-project-service-account", "Retrieve a service account"),
    _endpoint(
        "POST",
        _ACCOUNT,
        _update_account,
        "modify-project-service-account",
        "Rename a service account",
        body=fields.ServiceAccountChanges,
    ),
    _endpoint(
        "DELETE",
        _ACCOUNT,
        _delete_account,
        "delete-project-service-account",
        "Delete a service account, and revoke its key",
    ),
    _endpoint("GET", _ADMIN_KEYS, _list_admin_keys, "admin-api-keys-list", "List admin keys", takes=PAGED),
    _endpoint(
        "POST", _ADMIN_KEYS, _create_admin_key, "admin-api-keys-create", "Create an admin key", body=fields.NewAdminKey
    ),
    _endpoint("GET", _ADMIN_KEY, _get_admin_key, "admin-api-keys-get", "Retrieve an admin key"),
    _endpoint("DELETE", _ADMIN_KEY, _delete_admin_key, "admin-api-keys-delete", "Revoke an admin key"),
    _endpoint(
        "GET",
        _RETENTION,
        _get_retention,
        "retrieve-project-data-retention",
        "Show how long a project keeps what it stores",
    ),
    _endpoint(
        "POST",
        _RETENTION,
        _update_retention,
        "update-project-data-retention",
        "Set how long a project keeps what it stores",
        body=fields.NewRetention,
    ),
)
SPEND_LIMITS = (
    _endpoint(
        "GET",
        _SPEND_LIMIT,
        _get_spend_limit,
        "retrieve-organization-spend-limit",
        "Show what may be spent in a month",
    ),
    _endpoint(
        "POST",
        _SPEND_LIMIT,
        _update_spend_limit,
        "update-organization-spend-limit",
        "Limit what may be spent in a month",
        body=fields.NewSpendLimit,
    ),
    _endpoint(
        "DELETE",
        _SPEND_LIMIT,
        _delete_spend_limit,
        "delete-organization-spend-limit",
        "Remove the limit of what may be spent",
    ),
    _endpoint(
        "GET",
        _PROJECT_SPEND_LIMIT,
        _get_project_spend_limit,
        "retrieve-project-spend-limit",
        "Show what a project may spend in a month",
    ),
    _endpoint(
        "POST",
        _PROJECT_SPEND_LIMIT,
        _update_project_spend_limit,
        "update-project-spend-limit",
        "Limit what a project may spend in a month",
        body=fields.NewSpendLimit,
    ),
    _endpoint(
        "DELETE",
        _PROJECT_SPEND_LIMIT,
        _delete_project_spend_limit,
        "delete-project-spend-limit",
        "Remove the limit of what a project may spend",
    ),
)
