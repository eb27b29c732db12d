"""What one worker revokes, another one with the same database does not take."""

from typing import Any

import httpx
import openai

from tests.inprocess.transports.test_organization import PROJECTS, is_out
from tests.kit.closed import ClosedServer, bearer, post
from tests.kit.fixtures import module_server

closed = module_server("organization", ClosedServer, auth="on", model_name="m")


def test_what_one_worker_revokes_is_out_on_the_other(closed: ClosedServer, sdk: openai.OpenAI) -> None:
    projects = sdk.admin.organization.projects
    made: Any = projects.service_accounts.create(projects.create(name="workers").id, name="k")
    admin_key = sdk.admin.organization.admin_api_keys.create(name="short")
    with ClosedServer(closed.folder, auth="on", model_name="m") as other:
        assert post(other, made.api_key.value).status_code == 200
        assert httpx.get(other.url + PROJECTS, headers=bearer(admin_key.value), verify=False).status_code == 200
        sdk.admin.organization.admin_api_keys.delete(admin_key.id)
        projects.archive("workers")
        is_out(other, made.api_key.value)
        answer = httpx.get(other.url + PROJECTS, headers=bearer(admin_key.value), verify=False)
        assert answer.status_code == 401
