"""What was asked and answered, as it is looked for in the admin: an index of its words beside the responses.

The words themselves are each database's own, made by the migration: a table of FTS5 on SQLite, a column on PostgreSQL.
A trigger notes each response that ends in `WordsToRead`, whoever ends it, and a duty reads it
(`stores.database.words`). What was read goes with its response, by a trigger or a constraint of the database.
"""

from typing import ClassVar

from django.db import models

from responses_app.kit.columns import ID_LENGTH, WithId
from responses_app.kit.kept import Kept, OfNoProject

FIRST_WORDS = 120  # characters of the first words, with what says that there are more


class ResponseWords(models.Model):
    """What was read of one response."""

    # Seconds since 1970, times 2^31, and a part of the id's digest: in the order of time, as FTS5 returns what it finds
    number = models.BigIntegerField(primary_key=True)
    response_id = models.CharField(max_length=ID_LENGTH)
    project = models.CharField(max_length=64)
    first_words = models.CharField(max_length=FIRST_WORDS)  # of what was asked last
    kept = Kept(shown=(260, "searchable responses"), owner="Response")

    class Meta:
        verbose_name_plural = "response words"
        constraints: ClassVar = [models.UniqueConstraint(fields=["response_id"], name="responsewords_response")]

    def __str__(self) -> str:
        return self.response_id


class WordsToRead(WithId):
    """A response that is to be read; or, with `below`, all those whose ids come before that."""

    below = models.CharField(max_length=ID_LENGTH, default="")
    kept = OfNoProject("it names a response for the moment until that is read")

    class Meta:
        verbose_name_plural = "words to read"
