"""What somebody is shown who may see responses and not their content."""

import pytest
from django.test import Client

from responses_app.models import Conversation, StoredFile
from responses_app.models.audit import AuditRow
from tests.inprocess.admin import samples
from tests.inprocess.admin.conftest import ClientWith

SECRETS = ("Paris", "travel assistant", "get_weather", "get_forecast", "light rain", "I have a function", "autumn")


@pytest.fixture
def viewer(client_with: ClientWith) -> Client:
    """The browser of one who may see all lists, and no content."""
    return client_with("view_response", "view_conversation", "view_storedfile")


def test_the_page_of_a_response_has_its_figures_and_no_text(viewer: Client) -> None:
    first, _, _ = samples.agent_loop()
    html = viewer.get(f"/admin/responses_app/response/{first.pk}/change/?turns=1").content.decode()
    assert "153 tokens/s" in html and "1,200" in html  # noqa: PT018
    assert "Your permissions show figures" in html
    assert [text for text in SECRETS if text in html] == []
    assert not AuditRow.objects.filter(action="content_viewed").exists()


def test_downloads_and_conversations_are_refused(viewer: Client) -> None:
    first, _, conversation = samples.agent_loop()
    for path in (f"response/{first.pk}/json/", f"conversation/{conversation.pk}/change/"):
        assert viewer.get(f"/admin/responses_app/{path}").status_code == 403


def test_lists_leave_out_titles_and_names(viewer: Client) -> None:
    _, _, conversation = samples.agent_loop()
    Conversation.objects.filter(pk=conversation.pk).update(title="My salary")
    at = conversation.created_at
    StoredFile.objects.create(pk="file-1", filename="salaries.csv", bytes=1, purpose="user_data", created_at=at)
    for name, kept in (("conversation", conversation.pk), ("storedfile", "file-1")):
        html = viewer.get(f"/admin/responses_app/{name}/").content.decode()
        assert kept in html
        assert "alar" not in html
    assert not AuditRow.objects.filter(action="content_viewed").exists()
