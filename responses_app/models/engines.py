"""What trainers have done to engines, and which workers know it."""

from typing import ClassVar

from django.db import models

from responses_app.kit.columns import ID_LENGTH, JSONTextField
from responses_app.kit.kept import OfNoProject


class EngineDoor(models.Model):
    """The state of one model's engine (`protocol.engine_state`); each change has the next `number`."""

    model = models.CharField(max_length=255, primary_key=True)
    number = models.PositiveBigIntegerField(default=0)
    state = JSONTextField(default=dict)
    kept = OfNoProject("a model's engine is asked by all projects")

    def __str__(self) -> str:
        return f"{self.model} {self.number}"


class EngineReport(models.Model):
    """What came of the latest change that a worker has learnt of."""

    model = models.CharField(max_length=255)
    worker = models.CharField(max_length=ID_LENGTH)
    number = models.PositiveBigIntegerField()
    report = JSONTextField(default=dict)
    kept = OfNoProject("it is about a model's engine, which all projects ask")

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["model", "worker"], name="enginereport_worker")]

    def __str__(self) -> str:
        return f"{self.model} {self.worker} {self.number}"
