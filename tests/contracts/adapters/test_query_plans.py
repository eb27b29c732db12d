"""What the server asks its store all the time reads no more rows the more there are: SQLite says how it would do it.

SQLite is the one to ask, as it has no statistics: it chooses an index by its columns alone, however many rows that is.
"""

import asyncio
import re
from dataclasses import replace

import pytest
from django.db import connections

from responses_app.extensions.playground.chat_store import ChatsQuery, DatabaseKeptChats
from responses_app.kit.clock import utc
from responses_app.protocol.ids import PublicId
from responses_app.resources.conversations.fields import ConversationAppend
from responses_app.resources.conversations.model import Conversation
from responses_app.resources.conversations.store import Conversations
from responses_app.stores.base import LogAppend, RetentionSettings, WorkerState
from responses_app.stores.database.responses.chats import DatabaseChatStore
from responses_app.stores.database.responses.store import DatabaseResponseStore
from tests.contracts.adapters.stores import queries
from tests.contracts.adapters.test_chat_store import choices, name
from tests.contracts.store import GONE, INPUT, Turn, exchange, sampled_text, save_all
from tests.contracts.store_life import OpenStore

MANY = "responses_app_(response|chainpart|sampleditem|logpart|publicname|chatchoice|conversationitem|conversation)"
# Through a whole table, or all that a project has; `response_running` holds what runs, `response_no_chat` what an older
# version kept and this one has not looked at.
GROWS = re.compile(
    rf"SCAN (TABLE )?{MANY}\b(?!.* response_(running|no_chat))"
    r"|INDEX (\w*project_created|chatchoice_listed) \(project=\?( AND .*)?\)$",
    re.MULTILINE,
)

SCANS = re.compile(r"SCAN (TABLE )?responses_app_(?!worker)(?!.* response_running)")
WALKS = re.compile(r"INDEX response_newest \(project=\?")


def test_what_grows_is_told_from_what_does_not() -> None:
    """Steps as SQLite names them."""
    for step in (
        "SCAN responses_app_response",
        "SCAN TABLE responses_app_chainpart USING COVERING INDEX chainpart_parent",
        "SEARCH response USING INDEX response_project_created (project=? AND created_at>?)",
    ):
        assert GROWS.search(f"{step}\nSEARCH named USING INDEX x (id=?)")
    assert not GROWS.search("SCAN responses_app_response USING INDEX response_running")
    assert not GROWS.search("SCAN responses_app_worker\nSEARCH response USING INDEX pk (id=?)")


class TestPlans:
    @pytest.fixture
    def url(self, sqlite_url: str) -> str:
        return sqlite_url

    async def test_no_statement_of_a_response_s_life_grows_with_the_table(self, alias: str) -> None:
        with queries(alias) as statements:
            await self.live(DatabaseResponseStore(using=alias), Conversations(using=alias))
        assert len(set(statements)) > 30, "it did what it does"
        plans = await asyncio.to_thread(self.plans, alias, sorted(set(statements)))
        assert {sql: plan for sql, plan in plans.items() if GROWS.search(plan) or SCANS.search(plan)} == {}

    async def test_a_purge_goes_through_no_table(self, open_store: OpenStore, alias: str) -> None:
        limits = {"responses_store_ttl": 1e8, "responses_store_max_entries": 1000, "responses_store_max_bytes": 1 << 40}
        store = await open_store(settings=RetentionSettings(**limits))
        with queries(alias) as statements:
            await store.save(Turn().saying(*exchange(1)))
            await store.purge()
        plans = await asyncio.to_thread(self.plans, alias, sorted(set(statements)))
        assert len(plans) > 4
        assert {sql: plan for sql, plan in plans.items() if SCANS.search(plan)} == {}

    async def test_nor_does_one_of_a_stored_chat_s(self, open_store: OpenStore, alias: str) -> None:
        responses = await open_store()
        saved = choices("p", 2)
        await save_all(responses, saved)
        with queries(alias) as statements:
            chats = DatabaseChatStore(using=alias)
            assert await chats.get("p", name(saved)) is not None
            assert await chats.messages("p", name(saved)) is not None
            assert len(await chats.choices("p", name(saved))) == 2
            await chats.change("p", name(saved), {})
            await chats.aclose()
        plans = await asyncio.to_thread(self.plans, alias, sorted(set(statements)))
        assert len(plans) >= 4
        assert {sql: plan for sql, plan in plans.items() if GROWS.search(plan)} == {}

    async def test_nor_does_one_of_a_kept_chat_s(self, open_store: OpenStore, alias: str) -> None:
        responses = await open_store()
        stored = replace(Turn("p").saying(*exchange(1)), key_id="key_a")
        name = str(stored.response["id"])
        await responses.save(stored)
        with queries(alias) as statements:
            chats = DatabaseKeptChats(using=alias)
            for key_id in ("", "key_a"):
                for after in (None, name):
                    assert await chats.listed("p", ChatsQuery(key_id=key_id, after=after, limit=9)) is not None
                    page = ChatsQuery(key_id=key_id, only_playground=True, limit=9)
                    assert await chats.listed("p", page) == []
                assert await chats.listed("p", ChatsQuery(key_id=key_id, search="hello", limit=9))
            await chats.change("p", name, {"pinned": True})
            assert await chats.get("p", name, key_id="") is not None
            assert len((await chats.turns("p", name)).turns) == 1
            assert len(await chats.responses("p", name)) == 1
            assert not await chats.adopt()
            await chats.aclose()
            await responses.delete("p", name)
        plans = await asyncio.to_thread(self.plans, alias, sorted(set(statements)))
        assert len(plans) >= 12
        listed = {sql: plan for sql, plan in plans.items() if WALKS.search(plan)}
        assert len(listed) == 6, "the newest are walked, until there are enough"
        assert all("LIMIT" in sql and "USING COVERING INDEX response_newest" in plan for sql, plan in listed.items())
        assert {sql: plan for sql, plan in plans.items() if sql not in listed and GROWS.search(plan)} == {}

    @staticmethod
    async def live(store: DatabaseResponseStore, conversations: Conversations) -> None:
        """Let a response come, run, end, be read and continued, and go."""
        await store.start()
        await conversations.start()
        first = Turn()
        project, first_id, claim = first.project, first.response_id, GONE
        await conversations.create(Conversation(id="conv_1", project=project, created_at=utc(1)), [])
        await store.accept(first.begun())
        await store.append([LogAppend(response_id=first_id, claim=claim, position=0, data=b"x")])
        append = ConversationAppend(conversation_id="conv_1", items=INPUT, read_version=0)
        stored = replace(
            first.saying(*exchange(1), sampled=[sampled_text("Yes.")]), accepted=True, conversation=append, log=b"x"
        )
        await store.save(stored)
        await store.save(stored)  # once more: an answer was lost
        second = first.after(stored)
        await store.accept(second.begun(parent=first_id, request={"input": "x"}, public=PublicId("turn", 1)))
        await store.begin(project, second.response_id, claim)
        item_ids = [item.id for item in stored.sampled]
        await store.response(project, first_id)
        await store.knows(project, first_id)
        await store.newest_leg(project, "turn")
        await store.legs(project, "turn")
        await store.input_items(project, first_id)
        await store.log(project, first_id)
        await store.log_since(project, first_id, 0)
        assert await store.chain(project, first_id) is not None
        assert await store.sampled_items(project, item_ids)
        await store.items(project, [*item_ids, "msg_unknown"])
        await store.lost({second.response_id: claim})
        await store.beat(WorkerState(id="worker_2", started_at=1.0, connections=0, in_flight=0))
        await store.has_orphans("worker_2", dead_before=0.0)
        await store.reclaim("worker_2", dead_before=0.0)
        await store.delete(project, first_id)
        assert await store.delete_legs(project, "turn")
        assert await conversations.get(project, "conv_1") is not None
        await conversations.items_since(project, "conv_1", 0)
        await conversations.item(project, "conv_1", str(INPUT[0]["id"]))
        await store.aclose()
        await conversations.aclose()

    @staticmethod
    def plans(alias: str, statements: list[str]) -> dict[str, str]:
        """Return how SQLite would execute each, a step a line."""
        found = {}
        with connections[alias].cursor() as cursor:
            for sql in statements:
                if not re.match(r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE)", sql):
                    continue
                cursor.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * sql.count("%s"))
                found[sql] = "\n".join(row[3] for row in cursor.fetchall())
        connections[alias].close()
        return found
