"""A response and a conversation as pages: what they show, what they hide, what they cost."""

import json
import re
from datetime import UTC, datetime

import pytest
from django.contrib.admin import site
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from responses_app.extensions.console.admin import conversations
from responses_app.extensions.console.watch import page as response_page
from responses_app.extensions.console.watch.page import LARGEST
from responses_app.kit.pieces import FilePart
from responses_app.models import Response
from responses_app.resources.audit.model import AuditRow
from responses_app.resources.conversations.model import Conversation, ConversationItem
from responses_app.resources.files.model import StoredFile
from responses_app.resources.skills.model import Skill, SkillVersion
from tests.inprocess.admin import samples
from tests.inprocess.admin.conftest import ClientWith

SESSION_AND_USER, ROW, BODY, READ_ON, ROLLOUT = 2, 1, 1, 1, 1
RECORDED = 4  # what is shown for the first time: a savepoint, the trail's end, an entry, and the savepoint's release
TREE, BESIDE = 5, 1  # what goes on from those before it is looked for only where there are any
LIST = "/admin/responses_app/response/"
SHELLS = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</textarea></pre><svg onload=alert(1)>")
UNSEEN = "\x00\ud83d\ud800\u202eevil\u2066\U000e0041\ufeff\x1b[2J"
HOSTILE = f"{' '.join(SHELLS)} {UNSEEN} שלום {{{{ settings.SECRET_KEY }}}} {{% url %}}"


def page_of(client: Client, response: Response | str, query: str = "") -> str:
    """Return the page of a response as text."""
    answer = client.get(f"/admin/responses_app/response/{response}/change/{query}")
    assert answer.status_code == 200, answer.headers
    return answer.content.decode()


def without_space(html: str) -> str:
    """Return HTML with each run of white space as one space."""
    return re.sub(r"\s+", " ", html)


def test_a_response_reads_as_a_conversation(admin: Client) -> None:
    first, second, _ = samples.agent_loop()
    html = without_space(page_of(admin, first))
    asked, thought, called = (
        html.index(text) for text in ("warmer in Paris", "I have a function", "get_weather</code>")
    )
    assert html.index("You are a travel assistant") < asked < thought < called
    assert '<article class="bubble bubble-user">' in html
    assert '<span class="note">commentary</span>' in html
    assert re.search(r'<details class="reasoning" id="thought-\d+"> <summary><span class="who">Reasoning</span>', html)
    assert "{&quot;city&quot;: &quot;Paris&quot;, &quot;unit&quot;" in html
    for shown in ("get_forecast", "high", "autumn", "1,200", "800 cached", "153 tokens/s", "210 reasoning"):
        assert shown in html
    link = f'<a class="id" href="/admin/responses_app/response/{second.pk}/change/">{second.pk}</a>'
    assert f'id="node-{second.pk}" href="/admin/responses_app/response/{second.pk}/change/"' in html
    assert html.count(f"came with {link}") == 2
    assert "light rain" in html
    assert '<a class="id" href="/admin/responses_app/conversation/conv_1/change/"' in html


def test_a_continuation_names_what_it_continues_and_can_show_it(admin: Client) -> None:
    first, second, _ = samples.agent_loop()
    html = without_space(page_of(admin, second))
    assert f'<dt>Continues</dt><dd><bdi><a class="id" href="/admin/responses_app/response/{first.pk}/change/"' in html
    assert "Output of call_paris0001" in html
    talk = html[: html.index("Chain and forks")]
    assert "warmer in Paris" not in talk
    whole = without_space(page_of(admin, second, "?turns=1"))
    assert whole.index("warmer in Paris") < whole.index("This response") < whole.index("Rome is warmer today")
    assert "Output of call_paris0001" not in whole  # it stands with its call
    assert whole.count("light rain") == 4  # the output, the answer's, and both in the JSON


def test_a_page_costs_the_same_however_long_the_response_is(
    admin: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    calls = [samples.called(f"call_{number}", "look", "{}") for number in range(150)]
    first = samples.response(1, asked=[samples.said("Go")] * 300, output=calls)
    for number in range(2, 30):
        samples.response(number, asked=[samples.gave(f"call_{number}", "found")], after=first.pk)
    with django_assert_num_queries(SESSION_AND_USER + RECORDED + ROW + BODY + TREE + READ_ON + ROLLOUT):
        html = page_of(admin, first)
    assert html.count("bubble-user") == 200
    assert "100 earlier items are in the JSON alone" in html
    assert html.count('id="node-') == 29
    assert html.count("came with") == 3


def test_the_turns_before_are_bounded(admin: Client, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    after = ""
    for number in range(1, 30):
        after = samples.response(number, asked=[samples.said(f"Turn {number}")], after=after).pk
    with django_assert_num_queries(
        SESSION_AND_USER + RECORDED + ROW + BODY + TREE + BESIDE + ROLLOUT + response_page.TURNS
    ):
        html = page_of(admin, after, "?turns=1")
    talk = html[: html.index("Chain and forks")]
    assert "Turn 18<" not in talk
    assert "Turn 19<" in talk


@pytest.mark.parametrize("shell", [*SHELLS, UNSEEN])
def test_nothing_hostile_gets_out_of_its_place(admin: Client, shell: str) -> None:
    bad = shell + HOSTILE
    items = [
        samples.said(bad),
        {"type": "message", "role": bad, "content": [{"type": bad, "filename": bad}, {"text": bad}]},
        {"type": bad, "id": bad, "status": bad, "call_id": bad},
        {"type": "function_call", "call_id": bad, "name": bad, "arguments": bad, "status": bad},
        {"type": "function_call_output", "call_id": bad, "output": bad},
        {"type": "function_call_output", "call_id": bad + "2", "output": [{"type": "input_text", "text": bad}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": bad}]},
    ]
    body = {
        "instructions": bad,
        "tools": [{"type": "function", "name": bad}, bad],
        "metadata": {bad: bad},
        "error": {"code": bad, "message": bad},
        "user": bad,
        "tool_choice": {"name": bad},
    }
    stored = "".join(each for each in bad if not "\ud800" <= each <= "\udfff" and each != "\x00")[:60]
    response = samples.response(
        1, asked=items, output=items, body=body, status="failed", model=stored, transport=stored[:16], worker=stored,
        after=stored, part=False,
    )  # fmt: skip
    Conversation.objects.create(
        id="conv_1", created_at=response.created_at, title=bad.replace("\ud83d\ud800", ""), metadata={bad: bad}
    )
    ConversationItem.objects.bulk_create(
        ConversationItem(
            conversation_id="conv_1", item_id=str(at), position=at, created_at=response.created_at, item=item
        )
        for at, item in enumerate(items, 1)
    )
    pages = [
        page_of(admin, response),
        admin.get("/admin/responses_app/conversation/conv_1/change/").content.decode(),
        admin.get("/admin/responses_app/response/").content.decode(),
        admin.get("/admin/responses_app/conversation/").content.decode(),
    ]
    for html in pages:
        content = html[html.index('<main id="content-start"') :]
        assert "alert(1)" in content
        for raw in (*SHELLS, "<script>alert", "<img src=x", "<svg onload"):
            assert raw not in content
        for unseen in "\x00\u202e\u2066\ufeff\x1b\U000e0041":
            assert unseen not in content
    assert "\\ud83d\\ud800" in pages[0]
    assert "{{ settings.SECRET_KEY }}" in pages[0]
    assert "שלום" in pages[0]


def test_the_pages_let_no_script_in(admin: Client) -> None:
    response, _, conversation = samples.agent_loop()
    own = [f"responses_app/response/{response}/change/", f"responses_app/conversation/{conversation}/change/"]
    lists = [f"responses_app/{model}/" for model in ("response", "conversation", "worker")]
    users = ["auth/user/", "auth/user/add/", f"auth/user/{User.objects.get().pk}/change/", "auth/group/add/"]
    others = ["", "login/", "dashboard/", "password_change/", f"responses_app/response/{response}/delete/", "nowhere/"]
    models = [f"{model._meta.app_label}/{model._meta.model_name}/" for model in site._registry]
    every = [f"{model}{page}" for model in models for page in ("", "add/", "none/change/", "none/history/")]
    assert set(lists) < set(every), "what comes later is looked at, too"
    for path in (*own, *every, *users, *others):
        answer = admin.get(f"/admin/{path}")
        assert "default-src 'self';" in answer["Content-Security-Policy"], path
        assert " style=" not in answer.content.decode(), path
        assert not re.search(r"<script(?![^>]* src=)[^>]*>", answer.content.decode()), path


@pytest.mark.parametrize(
    "body",
    [{}, {"output": None}, {"output": {"a": 1}, "error": [], "tools": 5, "metadata": [], "text": 1, "reasoning": ""}],
)
def test_a_body_of_any_shape_is_shown(admin: Client, body: dict[str, object]) -> None:
    response = samples.response(1, body=body, part=False)
    Response.objects.filter(pk=response.pk).update(input_items={"no": "list"})
    assert "neither input nor output" in page_of(admin, response)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"error": {"code": "server_error", "message": "It broke."}}, "<strong>Failed: server_error</strong>"),
        ({"incomplete_details": {"reason": "max_output_tokens"}}, "cut short: max output tokens."),
    ],
)
def test_why_a_response_ended_is_said(admin: Client, body: dict[str, object], shown: str) -> None:
    assert shown in page_of(admin, samples.response(1, status="failed", body=body))


def test_what_is_too_large_is_not_read(admin: Client) -> None:
    response = samples.response(1, asked=[samples.said("Hello")], size=LARGEST + 1)
    html = page_of(admin, response)
    assert "too large to be shown" in html
    assert "Hello" not in html


def test_long_texts_are_folded_and_cut(admin: Client) -> None:
    response = samples.response(1, asked=[samples.said("word " * 4_000)], output=[samples.answered("long " * 100_000)])
    html = page_of(admin, response)
    assert "more characters</summary>" in html
    assert "more characters are in the JSON alone" in html
    assert len(html) < 400_000


def test_the_json_is_what_clients_get(admin: Client) -> None:
    response = samples.response(1, asked=[samples.said("\ud800\x00é")], body={"z": 1, "a": [10**30]})
    answer = admin.get(f"/admin/responses_app/response/{response}/json/")
    assert answer["Content-Disposition"] == f'attachment; filename="{response}.json"'
    assert json.loads(answer.content) == {"response": response.body, "input_items": response.input_items}


def test_what_is_not_kept_is_said(admin: Client) -> None:
    first, second, third = (samples.response(n, after=f"resp_{n - 1:032x}" if n > 1 else "") for n in (1, 2, 3))
    Response.objects.filter(pk__in=[first.pk, third.pk]).delete()
    html = without_space(page_of(admin, second))
    assert f"<dt>Continues</dt><dd><bdi>{first.pk} (not kept)</bdi>" in html
    for gone in (first, third):
        assert re.search(f'title="{gone.pk}">[^<]*</span> <span class="rs-aside">deleted, or past its time', html)


@pytest.mark.parametrize("path", ["response/resp_é%00/change/", "response/resp_1/json/", "conversation/conv_1/change/"])
def test_what_is_unknown_is_said_on_the_list(admin: Client, path: str) -> None:
    answer = admin.get(f"/admin/responses_app/{path}", follow=True)
    assert answer.redirect_chain == [(f"/admin/responses_app/{path.partition('/')[0]}/", 302)]
    assert "is not kept, or not any more" in answer.content.decode()


def test_a_page_is_found_under_djangos_quoted_address_too(admin: Client) -> None:
    response = samples.response(1)
    assert response.pk in admin.get(f"/admin/responses_app/response/{quote(response.pk)}/change/").content.decode()
    assert f'href="/admin/responses_app/response/{response.pk}/change/' in admin.get(LIST).content.decode()


def test_a_conversation_shows_its_items_and_their_responses(
    admin: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    first, second, conversation = samples.agent_loop()
    with django_assert_num_queries(SESSION_AND_USER + RECORDED + 2):
        html = admin.get(f"/admin/responses_app/conversation/{conversation}/change/").content.decode()
    html = without_space(html)
    assert (
        html.index(first.pk) < html.index("warmer in Paris") < html.index("light rain") < html.index("take an umbrella")
    )
    assert f'href="/admin/responses_app/response/{second.pk}/change/"' in html
    assert "A trip in autumn" in html
    assert "came with" not in html


def test_files_are_listed_without_what_is_in_them(admin: Client) -> None:
    name, at = f"{SHELLS[1]}\u202e.txt", datetime(2026, 11, 22, tzinfo=UTC)
    file = StoredFile.objects.create(
        id="file-1", filename=name, purpose="user_data", bytes=2048, created_at=at, is_whole=True
    )
    FilePart.objects.create(file=file, position=0, data=b"what is in it")
    html = admin.get("/admin/responses_app/storedfile/?q=file-").content.decode()
    assert "2.0 KiB" in html
    assert not any(each in html for each in (*SHELLS, "\u202e", "what is in it"))
    assert "file-1" not in admin.get("/admin/responses_app/storedfile/?q=file-2").content.decode()
    assert admin.get("/admin/responses_app/storedfile/file-1/change/").status_code == 302
    assert admin.get("/admin/responses_app/storedfile/file-1/delete/").status_code == 403


def test_skills_are_listed_and_found_by_their_id(admin: Client) -> None:
    skill = Skill.objects.create(id="skill_1", created_at=datetime(2026, 11, 22, tzinfo=UTC), is_whole=True)
    SkillVersion.objects.create(
        id="skillver_1",
        skill=skill,
        version=1,
        name="basic-math",
        bytes=2048,
        unpacked=4096,
        created_at=skill.created_at,
        is_whole=True,
    )
    html = admin.get("/admin/responses_app/skillversion/?q=skill_1").content.decode()
    assert "basic-math" in html
    assert "1 version of a skill" in html
    assert "basic-math" not in admin.get("/admin/responses_app/skillversion/?q=skill_2").content.decode()
    assert admin.get("/admin/responses_app/skillversion/skillver_1/delete/").status_code == 403


def test_a_long_conversation_goes_on_on_the_next_page(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "AT_ONCE", 3)
    samples.agent_loop()
    path = "/admin/responses_app/conversation/conv_1/change/"
    html = admin.get(path).content.decode()
    assert "get_weather" not in html
    (after,) = re.findall(r'href="\?after=(\d+)"', html)
    html = admin.get(f"{path}?after={after}").content.decode()
    assert "get_weather" in html
    assert "From the beginning" in html
    assert admin.get(f"{path}?after=x").status_code == 200


def test_pages_need_djangos_permission_to_view(client_with: ClientWith) -> None:
    response, _, conversation = samples.agent_loop()
    paths = [
        *(f"/admin/responses_app/response/{response}/{page}/" for page in ("change", "json")),
        f"/admin/responses_app/conversation/{conversation}/change/",
        *(f"/admin/responses_app/{model}/" for model in ("response", "conversation", "worker", "storedfile")),
        *(f"/admin/responses_app/{model}/" for model in ("webhookdelivery", "webhookendpoint")),
        *("/admin/dashboard/", "/admin/usage/"),
    ]
    stranger = client_with()
    assert {path: stranger.get(path).status_code for path in paths} == dict.fromkeys(paths, 403)
    assert [Client().get(path).status_code for path in paths] == [302] * len(paths)


SECRETS = ("Paris", "travel assistant", "get_weather", "get_forecast", "light rain", "I have a function", "autumn")


def test_who_may_not_see_content_sees_figures(client_with: ClientWith) -> None:
    """Who is shown which page and list, `tests/inprocess/roles` says."""
    first, _, _ = samples.agent_loop()
    html = page_of(client_with("view_response"), first, "?turns=1")
    assert "153 tokens/s" in html and "1,200" in html  # noqa: PT018
    assert "Your permissions show figures" in html
    assert [text for text in SECRETS if text in html] == []
    assert not AuditRow.objects.filter(action="content_viewed").exists()


def test_a_reader_reads_and_nothing_else(client_with: ClientWith) -> None:
    response, _, conversation = samples.agent_loop()
    reader = client_with("view_response", "view_conversation", "view_worker")
    html = page_of(reader, response)
    assert "Delete" not in html
    assert reader.get("/admin/dashboard/").status_code == 200
    for path in (f"response/{response}/delete/", f"conversation/{conversation}/delete/", "response/add/"):
        assert reader.get(f"/admin/responses_app/{path}").status_code == 403
    posted = reader.post(f"/admin/responses_app/response/{response}/change/", {"status": "failed"})
    assert posted.status_code == 405
    assert Response.objects.get(pk=response.pk).status == "completed"
