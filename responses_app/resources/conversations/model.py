"""What is kept of conversations: their items, in an order, and which response has read them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from django.db import models, transaction
from django.db.models import QuerySet

from responses_app.kit.columns import ID_LENGTH, JSONTextField, WithId, json_text
from responses_app.kit.kept import Kept, Line, removes, writes_lines


class Conversation(WithId):
    """Items that responses read and append to."""

    project = models.CharField(max_length=64, default="default")
    created_at = models.DateTimeField()
    title = models.TextField(default="")
    status = models.TextField(default="")
    metadata = JSONTextField(default=dict)
    # The response whose chain holds the items up to `head_position`. Empty where none does (items were deleted, or
    # two responses ran at once): then the next response renders all items anew.
    head = models.CharField(max_length=ID_LENGTH, default="")
    head_position = models.PositiveBigIntegerField(default=0)
    next_position = models.PositiveBigIntegerField(default=1)  # that the next item gets
    version = models.PositiveBigIntegerField(default=0)  # counts all changes
    kept = Kept(
        shown=(20, "conversations"),
        key="",
        dated="created_at",
        line=Line(30, "conversation", "id title metadata", by="created_at id"),
    )

    class Meta:
        indexes: ClassVar = [models.Index(fields=["project", "created_at"], name="conversation_project_created")]


class ConversationItem(models.Model):
    """An item of a conversation, in the order of `position`."""

    conversation = models.ForeignKey(
        Conversation, on_delete=models.CASCADE, related_name="items", db_constraint=False, db_index=False
    )
    item_id = models.CharField(max_length=ID_LENGTH)
    position = models.PositiveBigIntegerField()
    created_at = models.DateTimeField()
    item = JSONTextField()
    response_id = models.CharField(max_length=ID_LENGTH, default="")  # with which it came; empty for none
    kept = Kept(shown=(30, "conversation items"), project="conversation__project", owner="Conversation")

    class Meta:
        constraints: ClassVar = [
            # The item first: requests refer to items without their conversation.
            models.UniqueConstraint(fields=["item_id", "conversation"], name="conversationitem_id"),
            models.UniqueConstraint(fields=["conversation", "position"], name="conversationitem_position"),
        ]

    def __str__(self) -> str:
        return self.item_id


@removes(Conversation, at_once=50)
def _remove_with_items(rows: "QuerySet[Conversation]", ids: Sequence[str]) -> None:
    with transaction.atomic(using=rows.db):
        locked = list(rows.select_for_update().order_by("pk").values_list("pk", flat=True))
        ConversationItem.objects.using(rows.db).filter(conversation_id__in=locked).delete()
        rows.filter(pk__in=locked).delete()


@writes_lines(Conversation)
def _lines(row: Conversation, head: Mapping[str, Any], using: str) -> Iterator[str]:
    items = ConversationItem.objects.using(using).filter(conversation=row).order_by("position")
    yield json_text({**head, "items": [each.item for each in items.iterator(chunk_size=200)]})
