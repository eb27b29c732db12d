"""What projects keep for some hours, or never, is removed here once its time is over: all but responses that have
ended, which `responses.removal` removes.

    step(connection, project, oldest)     removes a few things that were made then or before; False: none is left

Each step is a transaction or two, so that a server may write between them.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Model, QuerySet

from responses_app.models import Conversation, ConversationItem, GonePlace, Response, StoredFile, Upload
from responses_app.models.batches import Batch
from responses_app.models.chats import NamedSetup
from responses_app.models.idempotency import IdempotencyKey
from responses_app.models.rollouts import Rollout
from responses_app.models.skills import Skill, SkillVersion
from responses_app.models.vector_stores import VectorStore
from responses_app.protocol.requests.resources import RUNNING as RUNNING_STATUSES
from responses_app.stores.database.batches.rows import remove_some_lines
from responses_app.stores.database.files.rows import remove_parts, remove_some_of
from responses_app.stores.database.files.skills import remove_some_of_version
from responses_app.stores.database.idempotency import remove_keys
from responses_app.stores.database.responses.removal import remove
from responses_app.stores.database.rollouts.removal import AT_ONCE as ROLLOUTS_AT_ONCE
from responses_app.stores.database.rollouts.removal import remove_hidden
from responses_app.stores.database.rollouts.removal import remove_some as remove_generations
from responses_app.stores.database.rollouts.rows import GONE
from responses_app.stores.database.vector_stores.rows import remove_some_of_store

Step = Callable[[BaseDatabaseWrapper, str, datetime], bool]
AT_ONCE = 50  # rows that one step removes, with what belongs to them

Row = TypeVar("Row", bound=Model)


def _past(model: type[Row], connection: BaseDatabaseWrapper, project: str, oldest: datetime) -> "QuerySet[Row]":
    """Return the rows of a project that were made by then."""
    return model._default_manager.using(connection.alias).filter(project=project, created_at__lte=oldest)


def remove_responses(
    connection: BaseDatabaseWrapper, project: str, oldest: datetime, *, running: bool
) -> Sequence[str]:
    """Remove some responses, and those that run where that is wanted; return their ids: workers have to be told."""
    rows = _past(Response, connection, project, oldest)
    rows = rows if running else rows.exclude(status__in=RUNNING_STATUSES)
    ids = list(rows.values_list("pk", flat=True)[:AT_ONCE])
    if ids:
        with transaction.atomic(using=connection.alias):
            remove(connection, ids)
    return ids


def _batches(connection: BaseDatabaseWrapper, project: str, oldest: datetime) -> bool:
    rows = _past(Batch, connection, project, oldest)
    batch_id = rows.values_list("pk", flat=True).first()
    if batch_id is None:
        return False
    # Its lines first: nothing would name them once it is gone. Who works on it meanwhile finds none, and then no batch.
    if remove_some_lines(connection, batch_id):
        rows.filter(pk=batch_id).delete()
    return True


def _conversations(connection: BaseDatabaseWrapper, project: str, oldest: datetime) -> bool:
    rows = _past(Conversation, connection, project, oldest)
    ids = list(rows.values_list("pk", flat=True)[:AT_ONCE])
    with transaction.atomic(using=connection.alias):
        # The conversation is locked by whoever adds to it: see `conversations`.
        ids = list(rows.select_for_update().filter(pk__in=ids).order_by("pk").values_list("pk", flat=True))
        ConversationItem.objects.using(connection.alias).filter(conversation_id__in=ids).delete()
        rows.filter(pk__in=ids).delete()
    return bool(ids)


def _places(connection: BaseDatabaseWrapper, project: str, oldest: datetime) -> bool:
    rows = GonePlace.objects.using(connection.alias).filter(project=project)
    keys = list(rows.filter(gone_at__lte=oldest).values_list("pk", flat=True)[:AT_ONCE])
    return bool(keys and rows.filter(pk__in=keys).delete()[0])


def _stores(connection: BaseDatabaseWrapper, project: str, oldest: datetime) -> bool:
    rows = _past(VectorStore, connection, project, oldest)
    store_id = rows.values_list("pk", flat=True).first()
    if store_id is None:
        return False
    rows.filter(pk=store_id).update(removed=True)  # nobody finds it any more
    remove_some_of_store(connection.alias, store_id)
    return True


def _files(connection: BaseDatabaseWrapper, project: str, oldest: datetime) -> bool:
    rows = _past(StoredFile, connection, project, oldest)
    file_id = rows.values_list("pk", flat=True).first()
    if file_id is None:
        return False
    rows.filter(pk=file_id).update(is_whole=False)
    remove_some_of(connection, file_id)
    return True


def _uploads(connection: BaseDatabaseWrapper, project: str, oldest: datetime) -> bool:
    rows = _past(Upload, connection, project, oldest)
    upload_id = rows.values_list("pk", flat=True).first()
    if upload_id is None:
        return False
    rows.filter(pk=upload_id).update(status="cancelled")
    with transaction.atomic(using=connection.alias):
        if remove_parts(connection, upload=upload_id, place=None):
            rows.filter(pk=upload_id).delete()
    return True


def _skills(connection: BaseDatabaseWrapper, project: str, oldest: datetime) -> bool:
    rows = _past(Skill, connection, project, oldest)
    skill_id = rows.values_list("pk", flat=True).first()
    if skill_id is None:
        return False
    rows.filter(pk=skill_id).update(is_whole=False)
    versions = SkillVersion.objects.using(connection.alias).filter(skill_id=skill_id)
    versions.update(is_whole=False)
    version_id = versions.values_list("pk", flat=True).first()
    if version_id is None:
        rows.filter(pk=skill_id).delete()
    else:
        remove_some_of_version(connection, version_id)
    return True


def _rollouts(connection: BaseDatabaseWrapper, project: str, oldest: datetime) -> bool:
    rows = Rollout.objects.using(connection.alias)
    ids = list(rows.filter(project=project, created_at__lte=oldest).values_list("pk", flat=True)[:ROLLOUTS_AT_ONCE])
    # First nobody finds them, so nothing is added to them any more. `purge` of roll-outs removes what is left of them.
    rows.filter(pk__in=ids).update(project=GONE, name=F("pk"))
    if ids and remove_generations(connection, ids):
        remove_hidden(connection, ids)
    return bool(ids)


def _keys(connection: BaseDatabaseWrapper, project: str, oldest: datetime) -> bool:
    rows = _past(IdempotencyKey, connection, project, oldest)
    with transaction.atomic(using=connection.alias):
        ids = list(rows.select_for_update().order_by("pk").values_list("pk", flat=True)[:AT_ONCE])
        remove_keys(connection, ids)
    return bool(ids)


def _setups(connection: BaseDatabaseWrapper, project: str, oldest: datetime) -> bool:
    rows = NamedSetup.objects.using(connection.alias).filter(project=project, updated_at__lte=oldest)
    return bool(rows.delete()[0])


# Batches first: they make files and responses.
STEPS: Sequence[Step] = (
    _batches,
    _conversations,
    _places,
    _stores,
    _files,
    _uploads,
    _skills,
    _rollouts,
    _keys,
    _setups,
)


def erase_past(using: str, project: str, oldest: float, *, running: bool) -> Iterator[Sequence[str]]:
    """Remove all that a project has made until then (Unix seconds), and yield the ids of responses that are gone.

    Those that run go too where that is wanted. It blocks.
    """
    connection, before = connections[using], time_of(oldest)
    for step in STEPS:
        while step(connection, project, before):
            pass
    while ids := remove_responses(connection, project, before, running=running):
        yield ids


def time_of(seconds: float) -> datetime:
    """Return Unix seconds as the columns of times have them."""
    return datetime.fromtimestamp(seconds, UTC)
