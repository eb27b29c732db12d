"""What is kept of a project, or of what one API key asked for: counted, written out, and erased.

Erasing goes in small steps, each a transaction, so that a server may run beside it. A response that runs is erased too:
its worker is told, and where it is not, what it would keep at its end finds no row, and is not kept.
The audit trail stays: it has no content, and a chain without some of its entries proves nothing.

    count(project="team-a")        what there is, a number a kind
    lines(project="team-a")        the same as JSON, a line each
    erase(project="team-a")        yields the ids of responses that are gone, step by step
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from django.db import connections, transaction
from django.db.models import QuerySet

from responses_app.models import (
    ApiKey,
    ApprovalClaim,
    BriefResponse,
    ChainPart,
    ChatChoice,
    Conversation,
    ConversationItem,
    GonePlace,
    LogPart,
    Project,
    PublicName,
    Response,
    SampledItem,
    StoredFile,
    Upload,
    json_text,
)
from responses_app.models.batches import Batch, BatchLine
from responses_app.models.chats import ChatLabel, NamedSetup
from responses_app.models.idempotency import IdempotencyKey
from responses_app.models.pictures import Picture, PictureUse
from responses_app.models.rollouts import Rollout
from responses_app.models.skills import Skill, SkillVersion
from responses_app.models.usage import Usage
from responses_app.models.vector_stores import VectorStore, VectorStoreFile
from responses_app.models.webhooks import WebhookDelivery, WebhookEndpoint, WebhookEvent
from responses_app.models.words import ResponseWords
from responses_app.protocol.json_text import one_line
from responses_app.protocol.rollouts.tree import tree_of
from responses_app.stores.database.batches.rows import remove_some_lines
from responses_app.stores.database.chunks import read_in_chunks
from responses_app.stores.database.files.rows import all_pieces, remove_files
from responses_app.stores.database.files.skills import erase_skills
from responses_app.stores.database.files.uploads import erase_uploads
from responses_app.stores.database.idempotency import erase_keys
from responses_app.stores.database.responses.removal import remove
from responses_app.stores.database.rollouts.removal import erase_rollouts
from responses_app.stores.database.rollouts.rows import read_generations, record_of
from responses_app.stores.database.usage import erase_usage
from responses_app.stores.database.vector_stores.rows import erase_stores

AT_ONCE = 200  # rows in one transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whose things are meant: a whole project's, or those responses that were asked for with one key of it."""

    project: str
    key_id: str = ""  # "" for all of the project

    def responses(self, using: str) -> "QuerySet[Response]":
        """Return its responses."""
        rows = Response.objects.using(using).filter(project=self.project)
        return rows.filter(key_id=self.key_id) if self.key_id else rows

    def batches(self, using: str) -> "QuerySet[Batch]":
        """Return its batches."""
        rows = Batch.objects.using(using).filter(project=self.project)
        return rows.filter(key_id=self.key_id) if self.key_id else rows

    def conversations(self, using: str) -> "QuerySet[Conversation]":
        """Return its conversations: they belong to the project, whichever of its keys made them."""
        rows = Conversation.objects.using(using).filter(project=self.project)
        return rows.none() if self.key_id else rows

    def files(self, using: str) -> "QuerySet[StoredFile]":
        """Return its files: they belong to the project, too."""
        rows = StoredFile.objects.using(using).filter(project=self.project)
        return rows.none() if self.key_id else rows


def count(subject: Subject, *, using: str = "default") -> Mapping[str, int]:
    """Return how many rows of each kind there are. All are 0 once nothing is left."""
    counted = {"responses": subject.responses(using).count(), "conversations": subject.conversations(using).count()}
    batches = subject.batches(using).count()
    if subject.key_id:
        return {**counted, "batches": batches}
    of_project = {"project": subject.project}
    items = ConversationItem.objects.using(using).filter(conversation__project=subject.project)
    logs = LogPart.objects.using(using).filter(response__project=subject.project)
    return {
        **counted,
        "conversation items": items.count(),
        "chain parts": ChainPart.objects.using(using).filter(**of_project).count(),
        "sampled items": SampledItem.objects.using(using).filter(**of_project).count(),
        "chat choices": ChatChoice.objects.using(using).filter(**of_project).count(),
        "places of what is gone": GonePlace.objects.using(using).filter(**of_project).count(),
        "brief responses": BriefResponse.objects.using(using).filter(**of_project).count(),
        "public names": PublicName.objects.using(using).filter(**of_project).count(),
        "log parts": logs.count(),
        "approval claims": ApprovalClaim.objects.using(using).filter(**of_project).count(),
        "pictures": Picture.objects.using(using).filter(**of_project).count(),
        "chat labels": ChatLabel.objects.using(using).filter(**of_project).count(),
        "webhook endpoints": WebhookEndpoint.objects.using(using).filter(**of_project).count(),
        "webhook events": WebhookEvent.objects.using(using).filter(**of_project).count(),
        "webhook deliveries": WebhookDelivery.objects.using(using).filter(**of_project).count(),
        "named setups": NamedSetup.objects.using(using).filter(**of_project).count(),
        "idempotency keys": IdempotencyKey.objects.using(using).filter(**of_project).count(),
        "batches": batches,
        "files": subject.files(using).count(),
        "uploads": Upload.objects.using(using).filter(**of_project).count(),
        "roll-outs": Rollout.objects.using(using).filter(**of_project).count(),
        "skills": Skill.objects.using(using).filter(**of_project).count(),
        "versions of skills": SkillVersion.objects.using(using).filter(**of_project).count(),
        "vector stores": VectorStore.objects.using(using).filter(**of_project).count(),
        "searchable responses": ResponseWords.objects.using(using).filter(**of_project).count(),
        "usage": Usage.objects.using(using).filter(**of_project).count(),
        "API keys": ApiKey.objects.using(using).filter(project_id=subject.project).count(),
        "projects": Project.objects.using(using).filter(name=subject.project).count(),
    }


def lines(subject: Subject, *, using: str = "default") -> Iterator[str]:
    """Yield what clients could read of it, as JSON, a line each: `{"response": …, "input_items": […]}`, and so on."""
    with read_in_chunks(using):
        for line in _lines(subject, using):
            yield one_line(line.encode()).decode()


def _lines(subject: Subject, using: str) -> Iterator[str]:
    for response in subject.responses(using).order_by("created_at", "id").iterator(chunk_size=AT_ONCE):
        yield json_text({"response": response.body, "input_items": response.input_items})
        for choice in ChatChoice.objects.using(using).filter(pk=response.pk, place=0):
            yield json_text({"chat_completion": choice.pk, "metadata": choice.metadata, "messages": choice.messages})
        for picture in (
            Picture.objects.using(using).filter(uses__owner=response.pk).order_by("pk").iterator(chunk_size=1)
        ):
            about = {"of_response": response.pk, "sha256": picture.digest, "media_type": picture.media_type}
            yield json.dumps({"picture": about, "base64": b64encode(picture.data).decode()})
    yield from _lines_of_batches(subject, using)
    for conversation in subject.conversations(using).order_by("created_at", "id").iterator(chunk_size=AT_ONCE):
        items = ConversationItem.objects.using(using).filter(conversation=conversation).order_by("position")
        kept = {"id": conversation.pk, "title": conversation.title, "metadata": conversation.metadata}
        yield json_text({"conversation": kept, "items": [row.item for row in items.iterator(chunk_size=AT_ONCE)]})
    if subject.key_id:
        return
    yield from _lines_of_the_playground(subject.project, using)
    yield from _lines_of_webhooks(subject.project, using)
    for store in VectorStore.objects.using(using).filter(project=subject.project).order_by("pk"):
        about = {"id": store.pk, "name": store.name, "description": store.description, "metadata": store.metadata}
        files = VectorStoreFile.objects.using(using).filter(store=store).values("file_id", "attributes")
        yield json_text({"vector_store": about, "files": list(files)})
    for file in subject.files(using).order_by("pk").iterator(chunk_size=AT_ONCE):
        about = {"id": file.pk, "filename": file.filename, "purpose": file.purpose, "bytes": file.bytes}
        yield json.dumps({"file": {**about, "created_at": file.created_at.isoformat()}})
        for piece in all_pieces(connections[using], file.pk, file.bytes):
            yield json.dumps({"content_of": file.pk, "base64": b64encode(piece).decode()})
    yield from _lines_of_skills(subject.project, using)
    yield from _lines_of_rollouts(subject.project, using)
    yield from _lines_of_usage(subject.project, using)
    for key in ApiKey.objects.using(using).filter(project_id=subject.project).order_by("created_at"):
        about = {"id": key.pk, "name": key.name, "prefix": key.prefix, "created_at": key.created_at.isoformat()}
        yield json.dumps({"api_key": about})


def _lines_of_batches(subject: Subject, using: str) -> Iterator[str]:
    for batch in subject.batches(using).order_by("pk"):
        yield json_text({"batch": {"id": batch.pk, "status": batch.status, "metadata": batch.metadata}})
        for row in BatchLine.objects.using(using).filter(batch=batch).order_by("number").iterator(chunk_size=AT_ONCE):
            told = {"body": bytes(row.body).decode(), "result": bytes(row.result).decode()}
            yield json_text({"line_of": batch.pk, "custom_id": row.custom_id, "outcome": row.outcome, **told})


def _lines_of_the_playground(project: str, using: str) -> Iterator[str]:
    for label in ChatLabel.objects.using(using).filter(project=project).order_by("pk"):
        yield json_text({"chat": {"id": label.pk, "title": label.title, "pinned": label.pinned}})
    for setup in NamedSetup.objects.using(using).filter(project=project).order_by("pk"):
        yield json_text({"prompt": {"id": setup.pk, "name": setup.name, "setup": setup.setup}})


def _lines_of_skills(project: str, using: str) -> Iterator[str]:
    versions = SkillVersion.objects.using(using).filter(project=project, is_whole=True, skill__is_whole=True)
    for row in versions.order_by("skill_id", "version").iterator(chunk_size=AT_ONCE):
        about = {"id": row.skill_id, "version": row.version, "name": row.name, "description": row.description}
        yield json.dumps({"skill": about})
        for piece in all_pieces(connections[using], row.pk, row.bytes):
            yield json.dumps({"content_of": row.skill_id, "version": row.version, "base64": b64encode(piece).decode()})


def _lines_of_rollouts(project: str, using: str) -> Iterator[str]:
    for row in Rollout.objects.using(using).filter(project=project).order_by("pk").iterator(chunk_size=AT_ONCE):
        head = record_of(row).as_json()
        generations = read_generations(connections[using], row.pk, range(row.generations))
        yield json_text({"rollout": tree_of(head, generations).in_files()})


def _lines_of_webhooks(project: str, using: str) -> Iterator[str]:
    for endpoint in WebhookEndpoint.objects.using(using).filter(project=project).order_by("pk"):
        about = {"id": endpoint.pk, "name": endpoint.name, "url": endpoint.url, "event_types": endpoint.event_types}
        yield json_text({"webhook_endpoint": about})


def _lines_of_usage(project: str, using: str) -> Iterator[str]:
    for row in Usage.objects.using(using).filter(project=project).order_by("at", "pk").iterator(chunk_size=AT_ONCE):
        whose = {"at": row.at, "seconds": row.seconds, "key_id": row.key_id, "model": row.model, "source": row.source}
        tokens = {"input": row.input_tokens, "cached": row.cached_tokens, "output": row.output_tokens}
        yield json_text({"usage": {**whose, "batch": row.batch, "requests": row.requests, "tokens": tokens}})


def _erase_batches(subject: Subject, using: str) -> None:
    while ids := list(subject.batches(using).values_list("pk", flat=True)[:AT_ONCE]):
        Batch.objects.using(using).filter(pk__in=ids).delete()
        for batch_id in ids:
            while not remove_some_lines(connections[using], batch_id):
                pass


def erase(subject: Subject, *, using: str = "default") -> Iterator[list[str]]:
    """Erase all of it, and yield the ids of the responses of each step; keys go last, so that nobody is surprised.

    What comes in meanwhile is erased too, as long as it comes slower than it goes: revoke the keys first.
    """
    _erase_batches(subject, using)  # first, so that they make no more responses: who works on one finds it gone
    # Each step looks anew, so that it also finds what came in meanwhile.
    while ids := list(subject.responses(using).values_list("pk", flat=True)[:AT_ONCE]):
        with transaction.atomic(using=using):
            remove(connections[using], ids)
        yield ids
    while ids := list(subject.conversations(using).values_list("pk", flat=True)[:AT_ONCE]):
        with transaction.atomic(using=using):
            ConversationItem.objects.using(using).filter(conversation_id__in=ids).delete()
            Conversation.objects.using(using).filter(pk__in=ids).delete()
    while ids := list(subject.files(using).values_list("pk", flat=True)[:AT_ONCE]):
        remove_files(using, ids)
    if subject.key_id:
        return
    erase_uploads(using, subject.project)
    erase_stores(using, subject.project)
    erase_skills(using, subject.project)
    erase_rollouts(using, subject.project)
    with transaction.atomic(using=using):
        # What an older version may have left behind.
        for model in (
            ApprovalClaim,
            ChainPart,
            ChatChoice,
            ChatLabel,
            NamedSetup,
            SampledItem,
            PublicName,
            BriefResponse,
            GonePlace,
        ):
            model.objects.using(using).filter(project=subject.project).delete()
        for table in (WebhookEndpoint, WebhookEvent, WebhookDelivery):
            table.objects.using(using).filter(project=subject.project).delete()
        erase_keys(using, subject.project)
        PictureUse.objects.using(using).filter(picture__project=subject.project).delete()
        Picture.objects.using(using).filter(project=subject.project).delete()
        Project.objects.using(using).filter(name=subject.project).delete()  # and its keys
    erase_usage(using, subject.project)  # last: nothing more is counted for a project that is gone
