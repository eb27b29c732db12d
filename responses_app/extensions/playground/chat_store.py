"""Chats among the responses of a database: found by the column `chat_id`, of which two indexes hold all that is asked.

A chat is the tree of stored responses that go on from one root, or the responses of a conversation (`membership`).
Nothing is kept a second time: what a person sets of a chat (a title, a pin) goes with its last response.

The list walks a project's newest responses and takes those that are the newest of their chats. So it reads as many
entries of an index as the chats it lists have responses, whatever else there is. Bodies are read of the first and the
newest response of a listed chat alone.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from engine import orjson
from responses_app.kit.errors import StoreError
from responses_app.kit.places import leave, left
from responses_app.kit.sql import for_update, one_at_a_time, placeholders
from responses_app.kit.table import Store, can_be_known
from responses_app.models.playground import ChatLabel
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.words import as_searched, text_of, words_of_json
from responses_app.protocol.requests.resources import ResponseObject
from responses_app.stores.base import RetentionSettings
from responses_app.stores.database.response_sql import NAMES, PARTS, RESPONSES
from responses_app.stores.database.responses.membership import adopt
from responses_app.stores.database.responses.rows import response_of, second_of, time_value

TITLE_WORDS = 70  # characters of what was asked first that are a chat's title until somebody sets one
MAX_TURNS = 1000  # of a chat that are read at once, the newest
MAX_TURN_BYTES = 32 << 20  # of these turns; the newest is read in any case
MAX_PINNED = 100  # chats of a project
PIN_LOCK = 0x70696E73  # the space of the locks of projects
LISTED = "playground.chats"  # the list in which the places of deleted chats are noted
ADOPTED_AT_ONCE = 100  # responses a transaction; bounds how long a server's writes wait for one
ADOPTING_STEPS = 10  # transactions of one call
TITLE_BYTES = 64 << 10  # characters of a root's input that are read for its title
SEARCHED_RESPONSES = 2000  # the newest ones of the caller, in which a search looks
SEARCHED_BYTES = 16 << 20  # of their texts
SEARCHED_EACH = 256 << 10  # bytes of a response; a larger one is not searched
SEARCHED_TITLES = 5000  # the titles of a project that were set last
AT_ONCE = 50  # responses whose texts are in memory together

# Times are said everywhere, also where the chat alone would do: without them SQLite would choose the other index.
_NEWEST = f"""
SELECT response.chat_id FROM {RESPONSES} AS response
WHERE response.project = %s AND response.created_at > %s AND response.chat_id <> '' {{further}}
AND response.id = (
    SELECT newer.id FROM {RESPONSES} AS newer
    WHERE newer.project = response.project AND newer.chat_id = response.chat_id AND newer.created_at > %s {{own}}
    ORDER BY newer.created_at DESC, newer.id DESC LIMIT 1)
ORDER BY response.created_at DESC, response.id DESC LIMIT %s
"""
_PLACE = f"""
SELECT created_at, id FROM {RESPONSES} AS newer
WHERE newer.project = %s AND newer.chat_id = %s AND newer.created_at > %s {{own}}
ORDER BY newer.created_at DESC, newer.id DESC LIMIT 1
"""
_SEARCHED = f"""
SELECT newer.id, newer.chat_id FROM {RESPONSES} AS newer
WHERE newer.project = %s AND newer.created_at > %s AND newer.chat_id <> '' {{own}}
ORDER BY newer.created_at DESC, newer.id DESC LIMIT %s
"""
_SEARCHED_TEXTS = f"""
SELECT id, CASE WHEN size <= %s THEN input_items END, CASE WHEN size <= %s THEN body END
FROM {RESPONSES} WHERE id IN ({{ids}})
"""
_ONE_OF_CHAT = f"""
(SELECT one.id FROM {RESPONSES} AS one
 WHERE one.project = chat.project AND one.chat_id = chat.chat_id AND one.created_at > %s
 ORDER BY one.created_at {{direction}}, one.id {{direction}} LIMIT 1)
"""
# What is past its time is left out of the sums, not of the rows: else SQLite would go through all younger responses.
_TOTALS = f"""
SELECT chat_id, COUNT(CASE WHEN created_at > %s THEN 1 END), MIN(CASE WHEN created_at > %s THEN created_at END),
MAX(created_at), MAX(CASE WHEN key_id = %s AND created_at > %s THEN 1 ELSE 0 END),
{_ONE_OF_CHAT.format(direction="ASC")}, {_ONE_OF_CHAT.format(direction="DESC")}
FROM {RESPONSES} AS chat WHERE project = %s AND chat_id IN ({{ids}})
GROUP BY project, chat_id HAVING MAX(created_at) > %s
"""
_CHAT_OF = f"""
SELECT chat_id FROM {RESPONSES} AS response WHERE response.id = %s AND project = %s AND created_at > %s
UNION ALL
SELECT chat_id FROM (SELECT chat_id FROM {RESPONSES} WHERE chat_id = %s AND project = %s
AND created_at > %s LIMIT 1) AS known
UNION ALL
SELECT chat_id FROM (SELECT response.chat_id FROM {NAMES} AS named CROSS JOIN {RESPONSES} AS response
WHERE response.id = named.id AND named.name = %s AND named.project = %s AND response.created_at > %s LIMIT 1) AS named
"""
_IDS = f"""
SELECT {{columns}} FROM {RESPONSES} WHERE chat_id = %s AND project = %s AND created_at > %s
ORDER BY created_at DESC, id DESC LIMIT %s
"""
_TURNS = f"""
SELECT response.id, response.body, response.status, response.input_items, response.previous_response_id, part.parent_id
FROM {RESPONSES} AS response LEFT JOIN {PARTS} AS part ON part.id = response.id WHERE response.id IN ({{ids}})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptChat:
    """A chat, without its turns."""

    id: str  # its root's, or the conversation's
    title: str  # that was set, else its first words
    title_from: str  # words, model or person
    pinned: bool
    model: str  # of its newest response
    created_at: int  # Unix seconds: when its first response was created that is still kept
    updated_at: int  # Unix seconds: when its newest response was created
    newest: str  # the id of that
    responses: int  # how many there are
    is_own: bool  # whether the key that asks has asked for any of them


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTurn:
    """A response of a chat; `parent` is the id of the one it goes on from, None for a root."""

    response: ResponseObject
    parent: str | None
    input_items: Sequence[JsonObject]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTurns:
    """The turns of a chat, the oldest first; `more`: older ones are left out."""

    turns: Sequence[KeptTurn]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatsQuery:
    """What part of the list of chats is asked for."""

    key_id: str  # whose; "": everybody's
    only_playground: bool = False  # pinned chats, and those in which the playground's page asked for a response
    search: str = ""  # what stands in their titles or texts
    after: str | None = None  # the id of the chat behind which it begins
    limit: int  # chats, at most


class TooManyPinned(StoreError):
    """A project has as many pinned chats as it may have."""


class DatabaseKeptChats(Store[RetentionSettings]):
    """The chats of projects. Every method raises `StoreError`.

    A chat is named by its id, or by the id of any of its responses. What is past its time is not found.
    """

    unlimited = RetentionSettings()

    async def listed(self, project: str, query: ChatsQuery) -> Sequence[KeptChat]:
        """Return the pinned chats, then the others, each the one with the newest response first.

        A search finds chats by their titles and by what was said in the newest responses, whatever the case; it is
        bounded in what it reads. The chat `after` may be gone.
        """
        since = self._known_since(project)
        page = query.only_playground
        return await self._threads.run(lambda db: _Chats(db, project, query.key_id, since, page).listed(query))

    async def get(self, project: str, name: str, *, key_id: str) -> KeptChat | None:
        """Return a chat."""
        if not can_be_known(name):
            return None
        since = self._known_since(project)
        return await self._threads.run(lambda db: _Chats(db, project, key_id, since).named(name))

    async def turns(self, project: str, chat_id: str) -> KeptTurns:
        """Return the newest turns of a chat, by its own id."""
        since = self._known_since(project)
        return await self._threads.run(lambda db: _Chats(db, project, "", since).turns(chat_id))

    async def change(self, project: str, chat_id: str, changes: Mapping[str, object]) -> None:
        """Set `title`, `title_from` or `pinned` of a chat that there is. Raises `TooManyPinned`."""
        at, since = datetime.fromtimestamp(self._now(), UTC), self._known_since(project)

        def write(connection: BaseDatabaseWrapper) -> None:
            labels = ChatLabel.objects.using(connection.alias)
            with transaction.atomic(using=connection.alias):
                if not _Chats(connection, project, "", since).held(chat_id):
                    return  # it has gone meanwhile
                if changes.get("pinned"):
                    one_at_a_time(connection, PIN_LOCK, project)
                    pinned = labels.filter(project=project, pinned=True).exclude(pk=chat_id)
                    if pinned.count() >= MAX_PINNED:
                        raise TooManyPinned(f"{project} has {MAX_PINNED} pinned chats already")
                labels.update_or_create(pk=chat_id, defaults={**changes, "project": project, "changed_at": at})

        await self._threads.run(write)

    def _known_since(self, project: str) -> float:
        return self._retentions.oldest(project, self._now(), ttl=self._settings.responses_store_ttl)

    async def responses(self, project: str, chat_id: str) -> Sequence[str]:
        """Return the ids of a chat's newest responses, the newest first, about as many as `MAX_TURNS`."""

        def read(connection: BaseDatabaseWrapper) -> Sequence[str]:
            chats = _Chats(connection, project, "", self._known_since(project))
            return [row[0] for row in chats.newest_of(chat_id, "id")]

        return await self._threads.run(read)

    async def leave(self, project: str, chat_id: str) -> None:
        """Note where a chat stands in the list, before it is deleted: it may be the cursor of a client."""
        at, since = datetime.fromtimestamp(self._now(), UTC), self._known_since(project)

        def write(connection: BaseDatabaseWrapper) -> None:
            for (newest,) in _Chats(connection, project, "", since).newest_of(chat_id, "id")[:1]:
                with transaction.atomic(using=connection.alias):
                    leave(connection.alias, project, LISTED, {chat_id: newest}, at=at)

        await self._threads.run(write)

    async def adopt(self) -> bool:
        """Find out to which chats some responses belong that an older version kept; return whether there are more."""

        def write(connection: BaseDatabaseWrapper) -> int:
            with transaction.atomic(using=connection.alias):
                return adopt(connection, at_most=ADOPTED_AT_ONCE)

        for _ in range(ADOPTING_STEPS):
            if await self._threads.run(write) < ADOPTED_AT_ONCE:
                return False
        return True


@dataclass(frozen=True, slots=True)
class _Chats:
    """The chats of a project as one key sees them, `since` a time in Unix seconds."""

    connection: BaseDatabaseWrapper
    project: str
    key_id: str
    since: float
    only_playground: bool = False  # in lists, beside those that are pinned

    def listed(self, query: ChatsQuery) -> Sequence[KeptChat]:
        """Return a part of the list."""
        pinned = self._pinned()
        if query.search:
            return self._searched(query, pinned)
        place: Sequence[Any] | None = None
        if query.after is not None:
            newest = self._newest_of_gone(query.after)
            gone = [time_value(self.connection, second_of(newest)), newest]
            place = self._place(query.after, pinned=query.after in pinned) or gone
        ids = pinned
        if query.after is not None:
            ids = pinned[pinned.index(query.after) + 1 :] if query.after in pinned else []
            place = None if query.after in pinned else place
        ids = ids[: query.limit]
        if len(ids) < query.limit:
            ids = [*ids, *self._newest(pinned, place, query.limit - len(ids))]
        return self.shown(ids)

    def _searched(self, query: ChatsQuery, pinned: Sequence[str]) -> Sequence[KeptChat]:
        """Return a part of the list of those chats in which something stands."""
        needle = as_searched(query.search)
        own, key = self._own("newer", anywhere=True)  # what clients of the API said in a chat of the page is found, too
        newest = self._rows(_SEARCHED.format(own=own), [self.project, self._since, *key, SEARCHED_RESPONSES])
        titles = self._labels().order_by("-changed_at").values_list("pk", "title")[:SEARCHED_TITLES]
        named = {pk for pk, title in titles if needle in as_searched(title) and self._place(pk) is not None}
        within = self._said([(row[0], row[1]) for row in newest], needle, known=named)
        # The newest responses tell the order; chats whose titles are found may be older.
        ordered = [each for each in dict.fromkeys(row[1] for row in newest) if each in within or each in named]
        if self.only_playground:
            ordered = [each for each in ordered if each in pinned or self._place(each) is not None]
        older = {each: self._place(each) or () for each in named.difference(ordered)}
        ordered += sorted(older, key=lambda each: tuple(older[each]), reverse=True)
        ordered = [*(each for each in pinned if each in ordered), *(each for each in ordered if each not in pinned)]
        if query.after is not None:
            ordered = self._behind(ordered, query.after)
        return self.shown(ordered[: query.limit])

    def _said(self, responses: Sequence[tuple[str, str]], needle: str, *, known: Collection[str]) -> set[str]:
        """Return the chats of these responses in which it was said; responses are ids with those of their chats.

        Those that are `known` to be found are not looked through. Texts are compared here, and not by the database:
        JSON has escapes, SQLite folds the case of ASCII alone, and what a person looks for may have any of the
        characters that a pattern gives a meaning.
        """
        found: set[str] = set()
        bytes_left = SEARCHED_BYTES
        for start in range(0, len(responses), AT_ONCE):
            batch = responses[start : start + AT_ONCE]
            some = [(pk, chat_id) for pk, chat_id in batch if chat_id not in found and chat_id not in known]
            if not some:
                continue
            sql = _SEARCHED_TEXTS.format(ids=placeholders(some))
            texts = {row[0]: row[1:] for row in self._rows(sql, [SEARCHED_EACH, SEARCHED_EACH, *dict(some)])}
            for response_id, chat_id in some:
                asked, body = texts.get(response_id, (None, None))
                bytes_left -= len(asked or "") + len(body or "")
                if bytes_left < 0:
                    return found
                if chat_id not in found and any(needle in as_searched(text_of(item)) for item in _items(asked, body)):
                    found.add(chat_id)
        return found

    def _behind(self, ordered: list[str], after: str) -> list[str]:
        if after in ordered:
            return ordered[ordered.index(after) + 1 :]
        gone = _made_as(self._newest_of_gone(after))
        places = ((each, self._place(each, pinned=True)) for each in ordered)
        return [each for each, place in places if place is not None and _made_as(place[1]) < gone]

    def _newest_of_gone(self, chat_id: str) -> str:
        """Return the newest response of a chat that is gone; where that was not noted its id, as far as that tells."""
        return left(self.connection.alias, self.project, LISTED, chat_id) or chat_id

    def named(self, name: str) -> KeptChat | None:
        """Return a chat by its id, or that of any of its responses."""
        since = self._since
        parameters = [name, self.project, since] * 3
        for (chat_id,) in self._rows(_CHAT_OF, parameters):
            if chat_id and (chats := self.shown([chat_id])):
                return chats[0]
        return None

    def shown(self, ids: Sequence[str]) -> list[KeptChat]:
        """Return those of these chats that there are, in this order."""
        if not ids:
            return []
        since, project = self._since, self.project
        parameters = [since, since, self.key_id, since, since, since, project, *ids, since]
        rows = self._rows(_TOTALS.format(ids=placeholders(ids)), parameters)
        totals = {str(row[0]): row[1:] for row in rows}
        firsts = [str(row[4]) for row in totals.values()]
        words = self._texts(firsts)
        models = self._models([str(row[5]) for row in totals.values()])
        labels = {each.pk: each for each in self._labels().filter(pk__in=list(totals))}
        chats = []
        for chat_id in ids:
            if chat_id not in totals:
                continue
            count, created_at, updated_at, is_own, first, newest = totals[chat_id]
            label = labels.get(chat_id)
            has_title = label is not None and bool(label.title)
            chats.append(
                KeptChat(
                    id=chat_id,
                    title=label.title if label is not None and has_title else words.get(first, ""),
                    title_from=label.title_from if label is not None and has_title else "words",
                    pinned=label is not None and label.pinned,
                    model=models.get(newest, ""),
                    created_at=_seconds(created_at),
                    updated_at=_seconds(updated_at),
                    newest=newest,
                    responses=count,
                    is_own=bool(is_own) or not self.key_id,
                )
            )
        return chats

    def newest_of(self, chat_id: str, columns: str) -> Sequence[Sequence[Any]]:
        """Return columns of the newest responses of a chat, the newest first: one more than are read at once."""
        return self._rows(_IDS.format(columns=columns), [chat_id, self.project, self._since, MAX_TURNS + 1])

    def held(self, chat_id: str) -> bool:
        """Keep a chat from going before this transaction ends, by a lock on a response; return whether there is one."""
        lock = f"SELECT id FROM {RESPONSES} WHERE id = %s {for_update(self.connection, 'FOR KEY SHARE')}"
        while newest := self.newest_of(chat_id, "id"):
            if self._rows(lock, newest[0]):
                return True
        return False  # each was deleted while its lock was waited for

    def turns(self, chat_id: str) -> KeptTurns:
        """Return the newest turns of a chat, the oldest of them first."""
        known = self.newest_of(chat_id, "id, size")
        left = MAX_TURN_BYTES
        chosen: list[str] = []
        for response_id, size in known[:MAX_TURNS]:
            left -= size
            if left < 0 and chosen:
                break
            chosen.append(response_id)
        rows: dict[str, Sequence[Any]] = {}
        names: dict[str, str] = {}  # that clients have for these responses, where it is not their own id
        for start in range(0, len(chosen), 100):
            some = chosen[start : start + 100]
            ids = placeholders(some)
            rows |= {row[0]: row for row in self._rows(_TURNS.format(ids=ids), some)}
            named = self._rows(f"SELECT id, name FROM {NAMES} WHERE id IN ({ids})", some)
            names |= {row[0]: row[1] for row in named}
        turns, before = [], ""  # `before`: the response of the conversation before this one
        newest: dict[str, str] = {}  # of those so far that clients call so
        for response_id in reversed(chosen):
            if response_id not in rows:
                continue
            _, body, status, input_items, previous, parent = rows[response_id]
            response = response_of(body, status)
            parent = parent or newest.get(previous, previous)
            if response.get("conversation"):
                parent, before = parent or before, response_id
            turns.append(KeptTurn(response=response, parent=parent or None, input_items=orjson.loads_kept(input_items)))
            if response_id in names:
                newest[names[response_id]] = response_id
        return KeptTurns(turns=turns, more=len(chosen) < len(known))

    @property
    def _since(self) -> object:
        return time_value(self.connection, self.since)

    def _labels(self) -> Any:
        return ChatLabel.objects.using(self.connection.alias).filter(project=self.project)

    def _pinned(self) -> list[str]:
        """Return the caller's pinned chats, the one with the newest response first."""
        ids = list(self._labels().filter(pinned=True).values_list("pk", flat=True)[:MAX_PINNED])
        places = {each: place for each in ids if (place := self._place(each, pinned=True)) is not None}
        return sorted(places, key=lambda each: (places[each][0], places[each][1]), reverse=True)

    def _place(self, chat_id: str, *, pinned: bool = False) -> Sequence[Any] | None:
        """Return where a chat stands in the list: when its newest response was created, and the id of that."""
        own, key = self._own("newer", anywhere=pinned)
        rows = self._rows(_PLACE.format(own=own), [self.project, chat_id, self._since, *key])
        return rows[0] if rows else None

    def _newest(self, without: Sequence[str], behind: Sequence[Any] | None, limit: int) -> list[str]:
        further, parameters = self._own("response")
        if behind is not None:
            # `<=` is said by itself, too: else SQLite reads all that stands before the cursor.
            further += "AND response.created_at <= %s AND (response.created_at, response.id) < (%s, %s)"
            parameters = [*parameters, behind[0], *behind]
        if without:
            further += f" AND response.chat_id NOT IN ({placeholders(without)})"
            parameters = [*parameters, *without]
        own, key = self._own("newer")
        sql = _NEWEST.format(further=further, own=own)
        return [row[0] for row in self._rows(sql, [self.project, self._since, *parameters, self._since, *key, limit])]

    def _own(self, table: str, *, anywhere: bool = False) -> tuple[str, list[object]]:
        page = f" AND {table}.playground " if self.only_playground and not anywhere else ""
        return (f"{page} AND {table}.key_id = %s ", [self.key_id]) if self.key_id else (page, [])

    def _texts(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the first words of what these responses were asked."""
        # One at a time: twenty pictures in one answer of the database would be a lot of memory for a few words.
        words: dict[str, str] = {}
        for each in ids:
            rows = self._rows(f"SELECT SUBSTR(input_items, 1, %s) FROM {RESPONSES} WHERE id = %s", [TITLE_BYTES, each])
            words[each] = words_of_json(rows[0][0], TITLE_WORDS) if rows else ""
        return words

    def _models(self, ids: Sequence[str]) -> dict[str, str]:
        sql = f"SELECT id, model FROM {RESPONSES} WHERE id IN ({placeholders(ids)})"
        return {row[0]: row[1] for row in self._rows(sql, ids)} if ids else {}

    def _rows(self, sql: str, parameters: Sequence[Any]) -> Sequence[Sequence[Any]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            rows: Sequence[Sequence[Any]] = cursor.fetchall()
        return rows


def _made_as(id: str) -> str:
    """Return the part of an id that grows with time: chats are named by conversations, too."""
    return id.partition("_")[2]


def _seconds(value: Any) -> int:
    """Return a time of a row in Unix seconds: SQLite gives it as a text."""
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())


def _items(asked: str | None, body: str | None) -> Iterator[JsonObject]:
    for items in (orjson.loads_kept(asked) if asked else [], orjson.loads_kept(body).get("output") if body else []):
        yield from (item for item in items or () if isinstance(item, dict))
