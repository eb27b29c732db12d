"""What is done in the admin, by nobody, by each role and by a superuser: each action and each form a real request.

An action is one of Django's lists: all that a page of the project could offer are found in the admin itself, so that a
new one fails the test that it has no row in.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

import httpx
import pytest
from django.contrib import admin

from tests.inprocess.roles.conftest import House
from tests.inprocess.roles.people import run
from tests.inprocess.roles.planted import ASKED, MARKER
from tests.inprocess.roles.test_matrix import ADMINS, CONTENT, MODELS, NOBODY, OPERATES, STAFF
from tests.kit.people import PASSWORD
from tests.kit.stored import stored

Make = Callable[[House], str]  # something new, of which the id is returned
IsDone = Callable[[House, httpx.Response, str], bool]


def make(path: str, body: Mapping[str, object]) -> Make:
    """Return what makes something over the API with a key."""

    def made(house: House) -> str:
        headers = {"authorization": f"Bearer {house.server.key}"}
        answer = httpx.post(f"{house.server.base_url}/{path}", json=body, headers=headers, timeout=30)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    return made


def newest(script: str, table: str) -> Make:
    """Return what makes a row by a script."""

    def made(house: House) -> str:
        run(house.server, script)
        return str(stored(house.server, f"SELECT max(id) FROM {table}")[0][0])

    return made


def planted(name: str) -> Make:
    return lambda house: house.ids[name]


def table_of(model: str) -> tuple[str, str]:
    """Return a model's table, and the column of its id."""
    key = {"project": "name", "auditrow": "number"}.get(model, "id")
    return f"{'auth' if model in ('user', 'group') else 'responses_app'}_{model}", key


def gone(model: str) -> IsDone:
    table, key = table_of(model)
    return lambda house, _, id: not stored(house.server, f"SELECT 1 FROM {table} WHERE {key} = '{id}'")


def has(model: str, condition: str) -> IsDone:
    table, key = table_of(model)
    query = f"SELECT 1 FROM {table} WHERE {condition} AND {key} = '{{}}'"
    return lambda house, _, id: bool(stored(house.server, query.format(id)))


RESPONSE = make("responses", ASKED)
RUNNING = make("responses", {"input": "count to 9000", "background": True})
CONVERSATION = make("conversations", {"metadata": ASKED["metadata"]})
WEBHOOK = {"name": "w", "url": "https://93.184.216.34/", "event_types": ["response.failed"]}
CALLERS = "from responses_app.resources.projects import callers; callers."
IMPORTS = "import uuid; from django.contrib.auth.models import Group, User; "
NO_PROMOTED = f"{IMPORTS}User.objects.filter(username='promoted').delete(); "
KEY = newest(f"{CALLERS}create_key('default')", "responses_app_apikey")
ADMIN_KEY = newest(f"{CALLERS}create_admin_key('x', None)", "responses_app_adminkey")
USER = newest(f"{IMPORTS}User.objects.create(username=uuid.uuid4().hex)", "auth_user")
PROMOTED = newest(f"{NO_PROMOTED}User.objects.create(username=uuid.uuid4().hex)", "auth_user")
GROUP = newest(f"{IMPORTS}Group.objects.create(name=uuid.uuid4().hex)", "auth_group")
DISABLED = "from responses_app.resources.webhooks.model import WebhookEndpoint as W; W.objects.update(enabled={})"
PARK = "from responses_app.resources.webhooks.model import WebhookDelivery as D; D.objects.update(status='parked')"
OF_PROJECTS = "from responses_app.resources.projects.model import ApiKey, Project; "
NO_KEY = f"{OF_PROJECTS}ApiKey.objects.filter(name='made').delete()"
NO_LIMITS = f"{OF_PROJECTS}Project.objects.update(websockets=None)"


def after(script: str, name: str) -> Make:
    """Return what brings something that was planted into a state."""

    def made(house: House) -> str:
        run(house.server, script)
        return house.ids[name]

    return made


@dataclass(frozen=True)
class Act:
    """An action of a list."""

    may: Set[str]
    make: Make
    is_done: IsDone


ACTS: Mapping[tuple[str, str], Act] = {
    ("response", "export"): Act(CONTENT, RESPONSE, lambda _, answer, __: MARKER in answer.text),
    ("response", "compare"): Act(STAFF, RESPONSE, lambda _, answer, __: "Select two responses" in answer.text),
    ("response", "cancel"): Act(OPERATES, RUNNING, has("response", "status = 'cancelled'")),
    ("response", "delete_selected"): Act(OPERATES, RESPONSE, gone("response")),
    ("conversation", "delete_selected"): Act(OPERATES, CONVERSATION, gone("conversation")),
    ("apikey", "revoke"): Act(OPERATES, KEY, has("apikey", "revoked_at IS NOT NULL")),
    ("adminkey", "revoke"): Act(OPERATES, ADMIN_KEY, has("adminkey", "revoked_at IS NOT NULL")),
    ("webhookendpoint", "enable"): Act(
        OPERATES, after(DISABLED.format(False), "webhookendpoint"), has("webhookendpoint", "enabled")
    ),
    ("webhookendpoint", "disable"): Act(
        OPERATES, after(DISABLED.format(True), "webhookendpoint"), has("webhookendpoint", "NOT enabled")
    ),
    ("webhookdelivery", "resend"): Act(
        OPERATES, after(PARK, "webhookdelivery"), has("webhookdelivery", "status <> 'parked'")
    ),
    ("auditrow", "export"): Act(CONTENT, planted("auditrow"), lambda _, answer, __: '"number": 1' in answer.text),
    ("user", "delete_selected"): Act(ADMINS, USER, gone("user")),
    ("group", "delete_selected"): Act(ADMINS, GROUP, gone("group")),
    # Django's own, which these lists do not offer.
    **{
        (model, "delete_selected"): Act(NOBODY, planted(model), gone(model))
        for model in ("apikey", "adminkey", "webhookendpoint", "webhookdelivery", "worker", "auditrow")
    },
}


def test_every_action_of_every_list_has_a_row() -> None:
    offered = {
        (str(model._meta.model_name), name)
        for model, pages in admin.site._registry.items()
        if pages.actions is not None
        for _, name, _ in pages._get_base_actions()
    }
    assert offered == set(ACTS)


def test_every_model_of_the_admin_has_rows() -> None:
    assert {str(model._meta.model_name) for model in admin.site._registry} == set(MODELS)


def posted(browser: httpx.Client, path: str, fields: Mapping[str, str]) -> httpx.Response:
    """Send a form, and read the page that it leads to."""
    form = {"csrfmiddlewaretoken": browser.cookies["csrftoken"], **fields}
    return browser.post(path, data=form, follow_redirects=True)


@pytest.mark.parametrize(("model", "action"), list(ACTS), ids=["-".join(each) for each in ACTS])
def test_an_action(house: House, model: str, action: str) -> None:
    act = ACTS[model, action]
    app = "auth" if model in ("user", "group") else "responses_app"
    for who, browser in house.browsers.items():
        id = act.make(house)
        fields = {"action": action, "_selected_action": id, "post": "yes"}
        answer = posted(browser, f"/admin/{app}/{model}/", fields)
        assert (who, act.is_done(house, answer, id)) == (who, who in act.may)
        if who not in CONTENT:
            assert MARKER not in answer.text


@dataclass(frozen=True)
class Form:
    """A page that takes a form."""

    path: str  # with the id of what is made for it in braces
    fields: Mapping[str, str]
    may: Set[str]
    make: Make
    is_done: IsDone


NEW = {"username": "new", "password1": PASSWORD, "password2": PASSWORD, "usable_password": "true"}
IN_THE_LIST = {
    **{"form-TOTAL_FORMS": "1", "form-INITIAL_FORMS": "1", "form-0-name": "default", "form-0-websockets": "7000"},
    "_save": "Save",
}
FORMS: Mapping[str, Form] = {
    "delete a response": Form(
        "responses_app/response/{}/delete/", {"post": "yes"}, OPERATES, RESPONSE, gone("response")
    ),
    "delete a conversation": Form(
        "responses_app/conversation/{}/delete/", {"post": "yes"}, OPERATES, CONVERSATION, gone("conversation")
    ),
    "create a key": Form(
        "responses_app/apikey/add/", {"project": "made", "name": "made"}, OPERATES, after(NO_KEY, "project"),
        lambda house, _, __: bool(stored(house.server, "SELECT 1 FROM responses_app_apikey WHERE name = 'made'")),
    ),
    "change limits": Form(
        "responses_app/project/{}/change/", {"websockets": "7000"}, OPERATES, after(NO_LIMITS, "project"),
        has("project", "websockets = 7000"),
    ),
    "change limits in the list": Form(
        "responses_app/project/", IN_THE_LIST, OPERATES, after(NO_LIMITS, "project"),
        has("project", "websockets = 7000"),
    ),
    "add a user": Form(
        "auth/user/add/", NEW, ADMINS,
        after(f"{IMPORTS}User.objects.filter(username='new').delete()", "user"),
        lambda house, _, __: bool(stored(house.server, "SELECT 1 FROM auth_user WHERE username = 'new'")),
    ),
    "make somebody a superuser": Form(
        "auth/user/{}/change/",
        {
            **{"username": "promoted", "is_superuser": "on", "is_staff": "on", "is_active": "on"},
            **{"date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"},
        },
        ADMINS, PROMOTED, has("user", "is_superuser"),
    ),
    "delete a group": Form("auth/group/{}/delete/", {"post": "yes"}, ADMINS, GROUP, gone("group")),
    "delete the trail": Form(
        "responses_app/auditrow/{}/delete/", {"post": "yes"}, NOBODY, planted("auditrow"), gone("auditrow")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_a_form(house: House, name: str) -> None:
    form = FORMS[name]
    for who, browser in house.browsers.items():
        if name == "make somebody a superuser":
            run(house.server, NO_PROMOTED)
        id = form.make(house)
        answer = posted(browser, f"/admin/{form.path.format(id)}", form.fields)
        assert (who, form.is_done(house, answer, id)) == (who, who in form.may)
        if who not in CONTENT:
            assert MARKER not in answer.text
