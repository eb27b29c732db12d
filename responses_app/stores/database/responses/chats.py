"""Stored chat completions in the database: rows beside those of the responses that their choices are.

Metadata is searched as the text it is kept as: `{"a":"b","c":"d"}` has the pair c, d since `,"c":"d"` stands in it.
That is exact, since quotes within a JSON string are escaped: no text of a client's can look like a pair.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from engine import orjson
from responses_app.kit.sql import placeholders
from responses_app.kit.table import Store, can_be_known, reads
from responses_app.models import ChatChoice, json_text
from responses_app.protocol.chat.completion import ChatForm, ChatQuery
from responses_app.protocol.errors import JsonObject
from responses_app.stores.base import BaseChatStore, KeptCompletion, RetentionSettings
from responses_app.stores.database.response_sql import CHOICES, RESPONSES
from responses_app.stores.database.responses.rows import response_of, second_of, time_value

# Whether a completion has all its choices: some may have been deleted, or have not ended.
_WHOLE = f"""
choice.choices = (SELECT COUNT(*) FROM {CHOICES} AS other
    WHERE other.first_id = choice.first_id AND other.project = choice.project)
"""
# A completion by its first choice. Parameters: id, project, and the time from which on responses are known.
_ONE = f"""
FROM {CHOICES} AS choice
WHERE choice.id = %s AND choice.place = 0 AND choice.project = %s AND choice.created_at > %s
"""
_AT = f"SELECT choice.created_at {_ONE}"
_MESSAGES = f"SELECT choice.messages {_ONE} AND {_WHOLE}"
# CROSS: SQLite is to look the choices up, and then their responses.
_BODIES = f"""
SELECT choice.first_id, choice.place, choice.choices, choice.form, choice.metadata, response.body, response.status
FROM {CHOICES} AS choice CROSS JOIN {RESPONSES} AS response
WHERE response.id = choice.id AND choice.first_id IN ({{ids}}) AND choice.project = %s AND response.created_at > %s
ORDER BY choice.first_id, choice.place
"""


class DatabaseChatStore(Store[RetentionSettings], BaseChatStore):
    """The stored chat completions of the database `using`.

    Responses are known as long as `settings` say, by the clock `now`. `timeout` bounds, in seconds, whatever waits for
    the database.
    """

    unlimited = RetentionSettings()

    @reads
    def get(self, project: str, first: str) -> KeptCompletion | None:
        if not can_be_known(first):
            return None
        return _completions(self._db, project, [first], self._known_since(project)).get(first)

    @reads
    def messages(self, project: str, first: str) -> Sequence[JsonObject] | None:
        if not can_be_known(first):
            return None
        rows = _rows(self._db, _MESSAGES, [first, project, time_value(self._db, self._known_since(project))])
        return orjson.loads_kept(rows[0][0]) if rows else None

    @reads
    def listed(self, project: str, query: ChatQuery, *, limit: int) -> Sequence[KeptCompletion]:
        since = self._known_since(project)
        ids = _listed_ids(self._db, project, query, since, limit)
        completions = _completions(self._db, project, ids, since)
        return [completions[each] for each in ids if each in completions]

    @reads
    def change(self, project: str, first: str, metadata: Mapping[str, str]) -> None:
        if can_be_known(first):
            self._choices(project, first).filter(place=0).update(metadata=dict(metadata))

    @reads
    def choices(self, project: str, first: str) -> Sequence[str]:
        if not can_be_known(first):
            return ()
        return list(self._choices(project, first).order_by("place").values_list("pk", flat=True))

    def _choices(self, project: str, first: str) -> "QuerySet[ChatChoice]":
        return ChatChoice.objects.using(self._using).filter(project=project, first_id=first)

    def _known_since(self, project: str) -> float:
        return self._retentions.oldest(project, self._now(), ttl=self._settings.responses_store_ttl)


def _listed_ids(
    connection: BaseDatabaseWrapper, project: str, query: ChatQuery, since: float, limit: int
) -> Sequence[str]:
    page = query.page
    conditions = ["choice.place = 0", "choice.project = %s", _WHOLE]
    parameters: list[Any] = [project]
    known = "choice.created_at > %s", time_value(connection, since)
    if page.after is not None:
        # The cursor is a place in the order (time, id): rows that come meanwhile do not move it.
        begin = _rows(connection, _AT, [page.after, project, known[1]])
        at = begin[0][0] if begin else time_value(connection, second_of(page.after))
        conditions.append(f"(choice.created_at, choice.first_id) {'<' if page.descending else '>'} (%s, %s)")
        parameters += [at, page.after]
        # The time is said by itself, too: else SQLite reads all that stands before the cursor.
        if page.descending:
            conditions.append("choice.created_at <= %s")
            parameters.append(at)
        else:
            known = "choice.created_at >= %s", at
    conditions.append(known[0])
    parameters.append(known[1])
    if query.model is not None:
        if "\0" in query.model:
            return []  # no model is called so, and PostgreSQL takes no such text
        conditions.append("choice.model = %s")
        parameters.append(query.model)
    place = "strpos" if connection.vendor == "postgresql" else "instr"
    for key, value in query.metadata.items():
        # Without the braces: `"c":"d"`, as it stands in the column.
        pair = json_text({key: value})[1:-1]
        conditions.append(f"({place}(choice.metadata, %s) > 0 OR {place}(choice.metadata, %s) > 0)")
        parameters += ["{" + pair, "," + pair]
    direction = "DESC" if page.descending else "ASC"
    sql = (
        f"SELECT choice.first_id FROM {CHOICES} AS choice WHERE {' AND '.join(conditions)} "
        f"ORDER BY choice.created_at {direction}, choice.first_id {direction} LIMIT %s"
    )
    return [row[0] for row in _rows(connection, sql, [*parameters, limit])]


def _completions(
    connection: BaseDatabaseWrapper, project: str, firsts: Sequence[str], since: float
) -> Mapping[str, KeptCompletion]:
    """Return those of these completions that are whole."""
    if not firsts:
        return {}
    sql = _BODIES.format(ids=placeholders(firsts))
    rows = _rows(connection, sql, [*firsts, project, time_value(connection, since)])
    completions = {}
    # The query has them in this order.
    for first, choices in groupby(rows, key=lambda row: str(row[0])):
        some = list(choices)
        _, place, count, form, metadata, *_ = some[0]
        # Whole: it begins with its first choice, and none is missing.
        if place == 0 and len(some) == count:
            completions[first] = KeptCompletion(
                responses=[response_of(body, status) for *_, body, status in some],
                form=ChatForm.from_json(orjson.loads_kept(form)),
                metadata=orjson.loads_kept(metadata),
            )
    return completions


def _rows(connection: BaseDatabaseWrapper, sql: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        rows: Sequence[Sequence[Any]] = cursor.fetchall()
    return rows
