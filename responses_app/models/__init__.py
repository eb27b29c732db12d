"""What is kept of responses.

A `Response` is what clients retrieve. A `ChainPart` is its part of a chain, a row of its own: forks share the parts
before them, and nothing is copied per turn. A `SampledItem` is an output item with the tokens it was sampled as, found
by its id when a client replays it. Ids are the API's own, so a part and its response have the same one.

No foreign key is a constraint of the database: a part outlives its response, whose descendants go on with it. Their
indexes are declared in `Meta`, since Django gives an indexed text column a second index on PostgreSQL, for LIKE.
"""

from typing import ClassVar

from django.db import models

from responses_app.kit import pieces as piece_models  # noqa: F401
from responses_app.kit import places as place_models  # noqa: F401
from responses_app.kit.columns import ID_LENGTH, JSONTextField, WithId
from responses_app.kit.columns import json_text as json_text
from responses_app.kit.kept import Kept, Line, OfNoProject
from responses_app.kit.resources import modules_of_resources
from responses_app.models import engines as engine_models  # noqa: F401
from responses_app.models import idempotency as idempotency_models  # noqa: F401
from responses_app.models import pictures as picture_models  # noqa: F401
from responses_app.models import playground as playground_models  # noqa: F401
from responses_app.models import sign_on as sign_on_models  # noqa: F401
from responses_app.models import words as word_models  # noqa: F401
from responses_app.protocol.requests.resources import RUNNING

list(modules_of_resources("model"))  # Django looks for models here

LISTED = (
    "status project model background transport input_tokens cached_tokens output_tokens first_token_ms duration_ms"
).split()


class Response(WithId):
    """A response, from the moment it was accepted."""

    project = models.CharField(max_length=64, default="default")
    status = models.CharField(max_length=16)  # it counts, and not the one in `body`
    model = models.CharField(max_length=256)
    created_at = models.DateTimeField()  # by the store's clock
    body = JSONTextField()  # the object as clients read it
    input_items = JSONTextField(default=list)  # what it was asked, each item with an id
    background = models.BooleanField(default=False)
    transport = models.CharField(max_length=16, default="")  # how its client was connected
    # The API key it was asked for with; `session:7` where the user 7 of the admin asked (`session` in older versions),
    # empty where nobody was asked.
    key_id = models.CharField(max_length=ID_LENGTH, default="", db_default="")
    previous_response_id = models.CharField(max_length=ID_LENGTH, default="")
    conversation_id = models.CharField(max_length=ID_LENGTH, default="")
    # The chat it belongs to, see `stores.database.responses.membership`; empty until that is found out, where an older
    # version accepted it.
    chat_id = models.CharField(max_length=ID_LENGTH, default="", db_default="")
    # Whether the playground's page asked for it, as its metadata says (`membership.MADE_IN`).
    playground = models.BooleanField(default=False, db_default=False)
    worker = models.CharField(max_length=ID_LENGTH, default="")  # the process that runs it; empty once it has ended
    epoch = models.IntegerField(default=1, db_default=1)  # how many have claimed it
    # What is thought of it where workers died while it was running, and what it was asked: `limits.suspects`.
    suspicion = models.PositiveSmallIntegerField(default=0, db_default=0)
    request_name = models.CharField(max_length=32, default="", db_default="")  # hexadecimal; empty where it has none
    request = JSONTextField(null=True)  # in the background: what another worker needs to go on; until it has ended
    size = models.PositiveBigIntegerField(default=0)  # bytes, as limits of what is kept count them
    input_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    output_tokens = models.PositiveIntegerField(default=0)
    first_token_ms = models.PositiveIntegerField(null=True)  # since its run began
    duration_ms = models.PositiveIntegerField(null=True)
    kept = Kept(
        shown=(10, "responses"), key="key_id", dated="created_at", line=Line(10, "response", by="created_at id")
    )

    class Meta:
        permissions: ClassVar = [("see_content", "Can see what people wrote and what models answered")]
        indexes: ClassVar = [
            models.Index(fields=["project", "created_at", "size"], name="response_project_created"),
            # What the admin lists, filters and counts, without reading the bodies: they make a table's scan slow.
            models.Index(fields=["created_at", *LISTED], name="response_listed"),
            models.Index(fields=["worker"], name="response_running", condition=models.Q(status__in=RUNNING)),
            models.Index(fields=["key_id"], name="response_key", condition=~models.Q(key_id="")),
            # Of a chat: its first response, its newest, and how many there are. Of a project: its newest chats.
            models.Index(fields=["project", "chat_id", "created_at", "id", "key_id"], name="response_chat"),
            models.Index(fields=["project", "created_at", "id", "key_id", "chat_id"], name="response_newest"),
            models.Index(fields=["created_at", "id"], name="response_no_chat", condition=models.Q(chat_id="")),
            # The same two for the chats of the playground, among any number of others.
            models.Index(
                fields=["project", "chat_id", "created_at", "id", "key_id"],
                name="response_page_chat",
                condition=models.Q(playground=True),
            ),
            models.Index(
                fields=["project", "created_at", "id", "key_id", "chat_id"],
                name="response_page_newest",
                condition=models.Q(playground=True),
            ),
        ]


class ChainPart(WithId):
    """One response's part of a chain, see `protocol.prompt.chain.LinkTokens`."""

    project = models.CharField(max_length=64, default="default")
    parent = models.ForeignKey(
        "self", null=True, on_delete=models.DO_NOTHING, related_name="children", db_constraint=False, db_index=False
    )
    started_on = models.CharField(max_length=10)  # the date that the chain's prompts tell, such as 2026-11-23
    calls = JSONTextField(default=dict)  # see `rows.calls_text`
    kinds = models.TextField()  # one letter for each message, see `MessageKind`
    lengths = models.BinaryField()  # tokens of each message, as little-endian 32-bit numbers
    tokens = models.BinaryField()  # of all messages, one behind the other, as such numbers
    settles = models.BooleanField()  # what came before it loses its analysis
    ends_final = models.BooleanField()
    kept = Kept(shown=(40, "chain parts"), owner="Response", moved=Line(10, "part"))

    class Meta:
        indexes: ClassVar = [models.Index(fields=["parent"], name="chainpart_parent")]


class PublicName(WithId):
    """What clients call a response, where that is not its own id: `protocol.ids.PublicId`. `id` is the response's."""

    project = models.CharField(max_length=64, default="default")
    name = models.CharField(max_length=ID_LENGTH)
    leg = models.PositiveIntegerField()  # from 1 on: which response of its turn it is
    kept = Kept(shown=(90, "public names"), owner="Response", moved=Line(40, "name"))

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["name", "project", "leg"], name="publicname_leg")]

    def __str__(self) -> str:
        return f"{self.name} {self.leg}"


class BriefResponse(WithId):
    """A background response with `store: false`, whose `id` it has: it is kept for a few minutes, to be polled."""

    project = models.CharField(max_length=64, default="default")
    ended_at = models.DateTimeField(null=True)  # None while it runs, and where its worker died and it failed
    kept = Kept(shown=(80, "brief responses"), owner="Response")


class ChatChoice(WithId):
    """What a response is as a choice of a stored chat completion (`protocol.chat.completion`); it has the same `id`."""

    project = models.CharField(max_length=64, default="default")
    first_id = models.CharField(max_length=ID_LENGTH)  # the response of the completion's first choice, which names it
    place = models.PositiveSmallIntegerField(default=0)  # among the choices, from 0 on
    choices = models.PositiveSmallIntegerField(default=1)  # how many there are
    created_at = models.DateTimeField()  # the response's, for lists; so is `model`
    model = models.CharField(max_length=256)
    metadata = JSONTextField(default=dict)  # counts in the first choice alone
    form = JSONTextField(default=dict)  # how its answer is worded
    messages = JSONTextField(default=list)  # what was asked; counts in the first choice alone
    kept = Kept(shown=(60, "chat choices"), owner="Response", moved=Line(50, "choice"))

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["first_id"], name="chatchoice_first"),
            models.Index(
                fields=["project", "created_at", "first_id"], name="chatchoice_listed", condition=models.Q(place=0)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.first_id} {self.place}"


class ApprovalClaim(models.Model):
    """Which response makes the call that a request for approval is about, see `runs.admission`."""

    project = models.CharField(max_length=64)
    request_id = models.CharField(max_length=ID_LENGTH)  # a digest of the request's id, which may be a client's
    response_id = models.CharField(max_length=ID_LENGTH)
    claimed_at = models.DateTimeField()
    kept = Kept(shown=(110, "approval claims"), owner="Response")  # a day later: `stores.approvals`

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "request_id"], name="approvalclaim_request")
        ]
        indexes: ClassVar = [models.Index(fields=["claimed_at"], name="approvalclaim_claimed")]

    def __str__(self) -> str:
        return self.request_id


class SampledItem(WithId):
    """An output item, and the tokens it was sampled as."""

    project = models.CharField(max_length=64, default="default")
    response = models.ForeignKey(
        Response, on_delete=models.CASCADE, related_name="sampled", db_constraint=False, db_index=False
    )
    fingerprint = models.CharField(max_length=32)  # a digest of what clients see of it
    kind = models.CharField(max_length=1)  # see `MessageKind`
    tokens = models.BinaryField()
    kept = Kept(shown=(50, "sampled items"), owner="Response", moved=Line(20, "sampled"))

    class Meta:
        indexes: ClassVar = [models.Index(fields=["response"], name="sampleditem_response")]


class LogPart(models.Model):
    """A part of a response's log, in the order of `position`: its inputs, as `response.input_codec` writes them.

    With the response's body it gives the events of its stream, at any time and on any worker.
    """

    response = models.ForeignKey(
        Response, on_delete=models.CASCADE, related_name="log", db_constraint=False, db_index=False
    )
    position = models.PositiveIntegerField()  # of its first byte in the log
    data = models.BinaryField()
    kept = Kept(
        shown=(100, "log parts"),
        project="response__project",
        owner="Response",
        moved=Line(30, "log", by="position"),
    )

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["response", "position"], name="logpart_position")]

    def __str__(self) -> str:
        return f"{self.response_id} {self.position}"


class Worker(WithId):
    """A server process that runs responses; one that has not been `seen_at` for a while is dead."""

    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()  # its last beat, by the store's clock
    connections = models.PositiveIntegerField(default=0)  # WebSockets that are open
    in_flight = models.PositiveIntegerField(default=0)  # responses that run
    kept = OfNoProject("a process serves all projects")
