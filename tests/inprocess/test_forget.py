"""`manage.py forget` erases only when no worker opens for the revoked keys any more; what `purge_responses` removes."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command

from responses_app.kit.pieces import FilePart
from responses_app.management.commands import forget
from responses_app.resources.conversations.model import Conversation
from responses_app.resources.files.model import StoredFile
from responses_app.resources.projects.callers import create_key
from responses_app.resources.projects.model import ApiKey, Project

pytestmark = pytest.mark.django_db


def test_files_whose_time_is_over_are_purged(capsys: pytest.CaptureFixture[str]) -> None:
    at = datetime(2026, 11, 22, tzinfo=UTC)
    for name, expires_at in (("gone", at), ("stays", None)):
        file = StoredFile.objects.create(
            id=name, filename="a", purpose="batch", bytes=1, created_at=at, expires_at=expires_at, is_whole=True
        )
        FilePart.objects.create(file=file, position=0, data=b"x")
    call_command("purge_responses", "--dry-run")
    assert "Would remove 1 files whose time is over." in capsys.readouterr().out
    call_command("purge_responses")
    assert "Removed 1 files whose time is over." in capsys.readouterr().out
    assert list(FilePart.objects.values_list("file_id", flat=True)) == ["stays"]


@pytest.mark.parametrize("flags", [(), ("--yes",), ("--dry-run",)], ids=str)
def test_a_project_that_is_not_there_is_told(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandError, match="There is no project nope"):
        call_command("forget", "--project", "nope", *flags)
    assert capsys.readouterr().out == ""
    call_command("forget", "--project", "default", "--yes")  # theirs who need no key: it is there without rows
    assert "There is nothing to erase." in capsys.readouterr().out


@pytest.mark.parametrize(("revoked_before", "waits"), [(None, True), (1.0, True), (60.0, False)])
def test_it_waits_until_the_keys_are_out(
    monkeypatch: pytest.MonkeyPatch, revoked_before: float | None, waits: bool
) -> None:
    _, key = create_key("mine")
    if revoked_before is not None:
        ApiKey.objects.filter(pk=key.pk).update(revoked_at=datetime.now(UTC) - timedelta(seconds=revoked_before))
    slept: list[float] = []

    def came_in_meanwhile(seconds: float) -> None:
        assert ApiKey.objects.get(pk=key.pk).revoked_at is not None
        slept.append(seconds)
        Conversation.objects.create(id="conv_late", project="mine", created_at=datetime.now(UTC))

    monkeypatch.setattr(time, "sleep", came_in_meanwhile)
    call_command("forget", "--project", "mine", "--yes")
    (seconds,) = slept
    assert seconds == pytest.approx(forget.OUT_SECONDS - (revoked_before or 0.0) if waits else 0.0, abs=0.9)
    assert not Conversation.objects.exists()
    assert not Project.objects.filter(name="mine").exists()
