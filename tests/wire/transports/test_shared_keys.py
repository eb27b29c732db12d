"""What one worker changes of keys and limits, another one with the same database keeps to."""

from typing import Any

import httpx
import openai
import pytest

from tests.inprocess.transports.test_organization import PROJECTS, is_out
from tests.inprocess.transports.test_spend_limits import PRICES, answers, is_refused
from tests.kit.closed import ClosedServer, bearer, post
from tests.kit.fixtures import module_server

SETTINGS = {"auth": "on", "prices": PRICES}
closed = module_server("shared_keys", ClosedServer, **SETTINGS)


async def test_all_together_are_limited_on_all_workers(closed: ClosedServer, sdk: openai.OpenAI) -> None:
    spend_limit = sdk.admin.organization.spend_limit
    key = closed.key
    assert post(closed, key).status_code == 200
    with pytest.raises(openai.NotFoundError):
        spend_limit.retrieve()
    set_ = spend_limit.update(currency="USD", interval="month", threshold_amount=500)
    assert (set_.object, set_.threshold_amount) == ("organization.spend_limit", 500)
    assert (set_.enforcement.status, set_.model_extra) == ("enforcing", {})
    assert spend_limit.retrieve() == set_
    await answers(closed, key, 429)
    is_refused(post(closed, key), "the spend limit of this server for ")
    with ClosedServer(closed.folder, **SETTINGS) as other:
        is_refused(post(other, key), "is 5.00 USD, and it is spent.")
        assert spend_limit.delete().deleted
        await answers(other, key, 200)
    await answers(closed, key, 200)
    closed.operate("set_limits", "--organization", "--monthly-spend-cents", "7")
    assert spend_limit.retrieve().threshold_amount == 7
    said = closed.operate("set_limits", "--organization", "--monthly-spend-cents", "none")
    assert said == "monthly spend cents: no limit\n"
    with pytest.raises(openai.NotFoundError):
        spend_limit.delete()
    await answers(closed, key, 200)


def test_what_one_worker_revokes_is_out_on_the_other(closed: ClosedServer, sdk: openai.OpenAI) -> None:
    projects = sdk.admin.organization.projects
    made: Any = projects.service_accounts.create(projects.create(name="workers").id, name="k")
    admin_key = sdk.admin.organization.admin_api_keys.create(name="short")
    with ClosedServer(closed.folder, **SETTINGS) as other:
        assert post(other, made.api_key.value).status_code == 200
        assert httpx.get(other.url + PROJECTS, headers=bearer(admin_key.value), verify=False).status_code == 200
        sdk.admin.organization.admin_api_keys.delete(admin_key.id)
        projects.archive("workers")
        is_out(other, made.api_key.value)
        answer = httpx.get(other.url + PROJECTS, headers=bearer(admin_key.value), verify=False)
        assert answer.status_code == 401
