"""A spend limit of all projects together, on two servers with one database."""

import openai
import pytest

from tests.inprocess.transports.test_spend_limits import PRICES, answers, is_refused
from tests.kit.closed import ClosedServer, post
from tests.kit.fixtures import module_server

SETTINGS = {"auth": "on", "prices": PRICES}
closed = module_server("spending", ClosedServer, **SETTINGS)


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
