"""Search in chats: in the titles that people gave them, and in what was said in the newest responses.

Texts are compared here, and not by the database: JSON has escapes, SQLite folds the case of ASCII alone, and what a
person looks for may have any of the characters that a pattern gives a meaning.
"""

from collections.abc import Collection, Iterator, Sequence

from django.db.backends.base.base import BaseDatabaseWrapper

from engine import orjson
from responses_app.kit.sql import placeholders
from responses_app.models.playground import ChatLabel
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.words import as_searched, text_of
from responses_app.stores.database.response_sql import RESPONSES

SEARCHED_RESPONSES = 2000  # the newest ones of the caller, in which a search looks
SEARCHED_BYTES = 16 << 20  # of their texts
SEARCHED_EACH = 256 << 10  # bytes of a response; a larger one is not searched
SEARCHED_TITLES = 5000  # the titles of a project that were set last
AT_ONCE = 50  # responses whose texts are in memory together
_TEXTS = f"""
SELECT id, CASE WHEN size <= %s THEN input_items END, CASE WHEN size <= %s THEN body END
FROM {RESPONSES} WHERE id IN ({{ids}})
"""


def titled(connection: BaseDatabaseWrapper, project: str, needle: str) -> set[str]:
    """Return chats with this in the titles that were set, of those that were set last."""
    labels = ChatLabel.objects.using(connection.alias).filter(project=project).order_by("-changed_at")
    titles = labels.values_list("pk", "title")[:SEARCHED_TITLES]
    return {chat_id for chat_id, title in titles if needle in as_searched(title)}


def search(
    connection: BaseDatabaseWrapper, responses: Sequence[tuple[str, str]], needle: str, *, known: Collection[str]
) -> set[str]:
    """Return the chats of these responses in which it was said; responses are ids with those of their chats.

    Those that are `known` to be found are not looked through.
    """
    found: set[str] = set()
    left = SEARCHED_BYTES
    for start in range(0, len(responses), AT_ONCE):
        some = [each for each in responses[start : start + AT_ONCE] if each[1] not in found and each[1] not in known]
        chats = dict(some)
        for response_id, asked, body in _texts(connection, list(chats)):
            left -= len(asked or "") + len(body or "")
            if left < 0:
                return found
            if chats[response_id] not in found and _says(asked, body, needle):
                found.add(chats[response_id])
    return found


def _texts(connection: BaseDatabaseWrapper, ids: Sequence[str]) -> Iterator[tuple[str, str | None, str | None]]:
    if ids:
        with connection.cursor() as cursor:
            cursor.execute(_TEXTS.format(ids=placeholders(ids)), [SEARCHED_EACH, SEARCHED_EACH, *ids])
            rows = {row[0]: row for row in cursor.fetchall()}
        yield from (rows[each] for each in ids if each in rows)


def _says(asked: str | None, body: str | None, needle: str) -> bool:
    return any(needle in as_searched(text_of(item)) for item in _items(asked, body))


def _items(asked: str | None, body: str | None) -> Iterator[JsonObject]:
    for items in (orjson.loads_kept(asked) if asked else [], orjson.loads_kept(body).get("output") if body else []):
        yield from (item for item in items or () if isinstance(item, dict))
