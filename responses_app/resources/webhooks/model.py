"""What is kept of webhooks: endpoints, events that nobody has looked at yet, and what is sent to each endpoint.

An event is one row, written in the transaction of what it tells, however many endpoints want it. A worker then makes
of it a delivery for each endpoint, and removes it.
"""

from typing import ClassVar

from django.db import models

from responses_app.kit.columns import ID_LENGTH, JSONTextField, WithId
from responses_app.kit.kept import Kept, Line

WAITING, DELIVERED, PARKED = "waiting", "delivered", "parked"


class WebhookEndpoint(WithId):
    """Where a project wants to be told of events."""

    project = models.CharField(max_length=64, default="default")
    name = models.TextField()
    url = models.TextField()
    event_types = JSONTextField(default=list)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    enabled = models.BooleanField(default=True)  # events are kept for it, and sent
    # Sealed as `protocol.sealing` says; the old one is good until its time is over.
    secret = models.TextField()
    secret_hint = models.CharField(max_length=32)
    old_secret = models.TextField(default="")
    old_secret_until = models.DateTimeField(null=True)
    # Who sends to it, until `leased_until`; then anybody may.
    worker = models.CharField(max_length=ID_LENGTH, default="")
    leased_until = models.DateTimeField(null=True)
    served_at = models.DateTimeField(null=True)  # when somebody last began to send: who waits longest is next
    paused_until = models.DateTimeField(null=True)  # nothing is sent before, since nothing that was sent arrived
    failures = models.PositiveIntegerField(default=0)  # how often in a row nothing arrived
    dropped = models.PositiveIntegerField(default=0)  # events that it was not told of, since too many waited
    kept = Kept(
        shown=(140, "webhook endpoints"),
        stays="it is a setting",
        line=Line(60, "webhook_endpoint", "id name url event_types"),
    )

    class Meta:
        indexes: ClassVar = [models.Index(fields=["project", "id"], name="webhookendpoint_project")]


class WebhookEvent(models.Model):
    """An event that is committed, and of which no delivery is made yet. The order is that of `id`."""

    event_id = models.CharField(max_length=ID_LENGTH)  # of its first message
    project = models.CharField(max_length=64)
    object_id = models.CharField(max_length=ID_LENGTH)
    messages = JSONTextField(default=list)  # `WebhookMessage`s as arrays of their fields
    created_at = models.DateTimeField()
    kept = Kept(shown=(150, "webhook events"), stays="it is to be sent first")

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["event_id"], name="webhookevent_once")]

    def __str__(self) -> str:
        return self.event_id


class WebhookDelivery(models.Model):
    """A message to one endpoint. Those of one object arrive in the order of `id`."""

    endpoint = models.ForeignKey(
        WebhookEndpoint, on_delete=models.CASCADE, related_name="deliveries", db_constraint=False, db_index=False
    )
    project = models.CharField(max_length=64)
    event_id = models.CharField(max_length=ID_LENGTH)
    type = models.CharField(max_length=64)
    object_id = models.CharField(max_length=ID_LENGTH)
    body = models.TextField()  # the JSON that is sent
    created_at = models.DateTimeField()  # when it happened
    status = models.CharField(max_length=16, default=WAITING)
    changed_at = models.DateTimeField()  # when it got its status
    attempts = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField()  # of the next attempt
    give_up_at = models.DateTimeField()  # then it is parked, with one attempt more
    status_code = models.PositiveSmallIntegerField(null=True)  # of the last answer
    problem = models.TextField(default="")  # why the last attempt failed
    kept = Kept(shown=(160, "webhook deliveries"), stays="it is to be sent first, and goes some days later")

    class Meta:
        verbose_name_plural = "webhook deliveries"
        constraints: ClassVar = [models.UniqueConstraint(fields=["endpoint", "event_id"], name="webhookdelivery_once")]
        indexes: ClassVar = [
            models.Index(fields=["endpoint", "due_at"], name="webhookdelivery_due", condition=models.Q(status=WAITING)),
            # Whether an earlier one of the same object still waits.
            models.Index(
                fields=["endpoint", "object_id", "id"], name="webhookdelivery_order", condition=models.Q(status=WAITING)
            ),
            models.Index(fields=["status", "changed_at"], name="webhookdelivery_ended"),
        ]

    def __str__(self) -> str:
        return f"{self.event_id} {self.endpoint_id}"
