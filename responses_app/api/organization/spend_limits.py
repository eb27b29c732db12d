"""What may be spent in a month, by a project (`…/projects/{project_id}/spend_limit`) and by all of them together.

Amounts are cents of PRICES_CURRENCY, which is the only currency. Who may spend more decides `runs.spending`.
"""

from functools import partial
from typing import Literal

from typing_extensions import TypedDict

from responses_app.protocol.fields import validate
from responses_app.protocol.organization import ORGANIZATION, NewSpendLimit, cents_of, no_spend_limit, project_not_found
from responses_app.protocol.prices import no_prices
from responses_app.web.http import ApiRequest, or_raise, read_json
from responses_app.web.organization import PROJECT, found_project, organization, who
from responses_app.wiring.site import get_site


class SpendLimitEnforcement(TypedDict):
    """Whether requests are refused now since the limit is reached."""

    status: Literal["inactive", "enforcing"]


class _SpendLimit(TypedDict):
    threshold_amount: int  # cents
    currency: str
    interval: Literal["month"]
    enforcement: SpendLimitEnforcement


class OrganizationSpendLimit(_SpendLimit):
    """What all projects together may spend in a calendar month of UTC."""

    object: Literal["organization.spend_limit"]


class ProjectSpendLimit(_SpendLimit):
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


async def _get(request: ApiRequest) -> OrganizationSpendLimit:
    return await _of_all(or_raise(await get_site().organization.organization_spend_limit(), no_spend_limit()))


async def _update(request: ApiRequest) -> OrganizationSpendLimit:
    cents = await _read(request)
    await get_site().organization.limit_all_spending(cents, by=who(request))
    return await _of_all(cents)


async def _delete(request: ApiRequest) -> DeletedOrganizationSpendLimit:
    site = get_site()
    or_raise(await site.organization.organization_spend_limit(), no_spend_limit())
    await site.organization.limit_all_spending(None, by=who(request))
    return {"object": "organization.spend_limit.deleted", "deleted": True}


async def _get_of_project(request: ApiRequest, project_id: str) -> ProjectSpendLimit:
    project = await found_project(project_id)
    return await _of_project(project_id, or_raise(project.monthly_spend_cents, no_spend_limit()))


async def _update_of_project(request: ApiRequest, project_id: str) -> ProjectSpendLimit:
    await found_project(project_id)  # before the body is judged
    cents = await _read(request)
    changed = await get_site().organization.limit_spending(project_id, cents, by=who(request))
    or_raise(changed, project_not_found(project_id))
    return await _of_project(project_id, cents)


async def _delete_of_project(request: ApiRequest, project_id: str) -> DeletedProjectSpendLimit:
    or_raise((await found_project(project_id)).monthly_spend_cents, no_spend_limit())
    changed = await get_site().organization.limit_spending(project_id, None, by=who(request))
    or_raise(changed, project_not_found(project_id))
    return {"object": "project.spend_limit.deleted", "deleted": True}


async def _read(request: ApiRequest) -> int:
    site = get_site()
    fields = await read_json(request, partial(validate, NewSpendLimit), site.reader)
    if not site.settings.prices:
        raise no_prices()
    return cents_of(fields, site.settings.prices_currency)


async def _of_all(cents: int) -> OrganizationSpendLimit:
    return {"object": "organization.spend_limit", **await _shown(ORGANIZATION, cents)}


async def _of_project(project_id: str, cents: int) -> ProjectSpendLimit:
    return {"object": "project.spend_limit", **await _shown(f"project:{project_id}", cents)}


async def _shown(subject: str, cents: int) -> _SpendLimit:
    site = get_site()
    is_reached = await site.spending.is_reached(subject, cents)
    return {
        "threshold_amount": cents,
        "currency": site.settings.prices_currency.upper(),
        "interval": "month",
        "enforcement": {"status": "enforcing" if is_reached else "inactive"},
    }


_ALL, _OF_PROJECT = "/v1/organization/spend_limit", f"{PROJECT}/spend_limit"

ENDPOINTS = (
    organization("GET", _ALL, _get, "retrieve-organization-spend-limit", "Show what may be spent in a month"),
    organization(
        *("POST", _ALL, _update, "update-organization-spend-limit", "Limit what may be spent in a month"),
        body=NewSpendLimit,
    ),
    organization("DELETE", _ALL, _delete, "delete-organization-spend-limit", "Remove the limit of what may be spent"),
    organization(
        *("GET", _OF_PROJECT, _get_of_project, "retrieve-project-spend-limit"),
        "Show what a project may spend in a month",
    ),
    organization(
        *("POST", _OF_PROJECT, _update_of_project, "update-project-spend-limit"),
        "Limit what a project may spend in a month",
        body=NewSpendLimit,
    ),
    organization(
        *("DELETE", _OF_PROJECT, _delete_of_project, "delete-project-spend-limit"),
        "Remove the limit of what a project may spend",
    ),
)
