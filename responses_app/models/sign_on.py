"""Which user somebody is who signs in at the provider of single sign-on."""

from typing import ClassVar

from django.conf import settings
from django.db import models

from responses_app.kit.kept import OfNoProject

MAX_PART = 255  # characters of an issuer, and of a subject


class SignOnAccount(models.Model):
    """What the provider calls a user. It goes when the user goes."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="sign_on", db_constraint=False
    )
    issuer = models.CharField(max_length=MAX_PART)
    subject = models.CharField(max_length=MAX_PART)  # of the issuer: it means one person for ever
    created_at = models.DateTimeField()
    kept = OfNoProject("it is a user's of the admin")

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["issuer", "subject"], name="signonaccount_subject")]

    def __str__(self) -> str:
        return self.subject
