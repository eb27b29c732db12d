"""Usage of models by requests. It outlives them: a response that is deleted has used its tokens all the same."""

from typing import ClassVar

from django.db import models

from responses_app.kit.columns import ID_LENGTH, WithId
from responses_app.kit.kept import Kept, Line


class Usage(WithId):
    """What one request has used, or, once that is a while ago, all those of a minute, an hour or a day together.

    `id` is that of the response, the completion or the request; of a sum, a digest of all it is the sum of.
    """

    at = models.BigIntegerField()  # Unix seconds: when the request ended, or when the time of the sum begins
    seconds = models.PositiveIntegerField(default=0)  # how long the time of the sum is; 0 for one request
    project = models.CharField(max_length=64)
    key_id = models.CharField(max_length=ID_LENGTH)  # as that of a response
    model = models.CharField(max_length=256)
    source = models.CharField(max_length=16)  # see `resources.usage.fields.SOURCES`
    batch = models.BooleanField()  # they were lines of batches
    requests = models.PositiveBigIntegerField(default=1)
    input_tokens = models.PositiveBigIntegerField()
    cached_tokens = models.PositiveBigIntegerField()  # of the input
    output_tokens = models.PositiveBigIntegerField()
    kept = Kept(
        shown=(265, "usage"),
        stays="what was used is owed, whatever is kept of it",
        erased=2,  # nothing more is counted for a project that is gone
        line=Line(110, "usage", "at seconds key_id model source batch requests", by="at pk"),
    )

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["at", "project"], name="usage_time"),
            models.Index(fields=["seconds", "at"], name="usage_folding"),
            # All that sums of days are made of, in the order in which they are told apart: SQLite sorts nothing then.
            models.Index(
                *("project", "model", models.F("at") - models.F("at") % 86_400, "at", "source", "batch"),
                *("requests", "input_tokens", "cached_tokens", "output_tokens"),
                name="usage_days",
            ),
        ]
