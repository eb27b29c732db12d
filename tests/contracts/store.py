"""What every response store does with chains and items; `store_life` has how responses come and go."""

import asyncio
import random
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from engine.formats.base import MessageKind, RenderedMessage
from engine.formats.harmony.prompt import render_assistant, render_call, render_text, render_tool_output
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.items import SampledMessage, fingerprint
from responses_app.protocol.prompt.chain import ChainLink, drop_oldest, new_link
from responses_app.stores.base import AcceptedResponse, BaseResponseStore, Claim, StoredResponse

UNTAMED = "NUL \x00, a lone surrogate \ud800, \\u0000, 漢字, 🙂, \x1b, \u2028"
INPUT: tuple[JsonObject, ...] = ({"type": "message", "id": "msg_asked", "role": "user", "content": "Hello"},)
GONE = Claim("worker_gone")
IDS_NOBODY_MADE = ("", "resp_unknown", "resp_\x00", "resp_\ud800", "resp_é", "x" * 10_000, "%s", "' OR 1=1 --")


Value = TypeVar("Value")


def present(value: Value | None) -> Value:
    """Return a value that has to be there."""
    assert value is not None
    return value


def new_id(prefix: str) -> str:
    """Make an id as long as the server's."""
    return f"{prefix}_{uuid.uuid4().hex}"


@dataclass(frozen=True)
class Turn:
    """A response to be accepted and stored; `project` is one that no other test uses."""

    project: str = field(default_factory=lambda: new_id("proj"))
    parent: ChainLink | None = None
    response_id: str = field(default_factory=lambda: new_id("resp"))
    created_at: int = field(default_factory=lambda: int(time.time()))

    def begun(self, status: str = "in_progress", **fields: Any) -> AcceptedResponse:
        """Return it as it is accepted, by a worker that nobody ever saw; one that is queued can be run again."""
        request = {"input": "Hello"} if status == "queued" else None
        fields = {"claim": GONE, "transport": "test", "request": request, **fields}
        return AcceptedResponse(project=self.project, response=self._response(status, []), input_items=INPUT, **fields)

    def saying(
        self, *messages: RenderedMessage, calls: Iterable[JsonObject] = (), sampled: Iterable[SampledMessage] = ()
    ) -> StoredResponse:
        """Return it completed, with these messages in its link."""
        link = new_link(
            self.parent, response_id=self.response_id, started_on="2026-11-20", messages=messages, items=list(calls)
        )
        return self._stored("completed", link, tuple(calls), tuple(sampled))

    def failed(self, *, sampled: Iterable[SampledMessage] = ()) -> StoredResponse:
        """Return it failed: it cannot be continued."""
        return self._stored("failed", None, (), tuple(sampled))

    def after(self, stored: StoredResponse) -> "Turn":
        """Return a turn that continues a response."""
        return Turn(stored.project, stored.link)

    def _stored(
        self, status: str, link: ChainLink | None, output: Sequence[JsonObject], sampled: tuple[SampledMessage, ...]
    ) -> StoredResponse:
        response = self._response(status, [*output, *map(as_output, sampled)])
        return StoredResponse(
            project=self.project, response=response, link=link, input_items=INPUT, sampled=sampled, claim=GONE
        )

    def _response(self, status: str, output: list[JsonObject]) -> JsonObject:
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": None,
            "status": status,
            "error": None,
            "background": status == "queued",
            "model": "test",
            "output": output,
            "previous_response_id": self.parent.response_id if self.parent else None,
            "usage": None,
        }


def as_output(sampled: SampledMessage) -> JsonObject:
    """Return an output item as its response has it."""
    return {"type": "message", "id": sampled.id, "status": "completed"}


def exchange(number: int) -> list[RenderedMessage]:
    """Return a question, what the model thought, and its answer."""
    return [
        render_text("user", f"Question {number}?"),
        render_assistant("analysis", f"The user asks question {number}."),
        render_assistant("final", f"Answer {number}."),
    ]


def call(name: str, call_id: str) -> JsonObject:
    """Return a function call's item."""
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}


def sampled_text(text: str) -> SampledMessage:
    """Return an output item with its tokens."""
    item: JsonObject = {"type": "message", "content": [{"type": "output_text", "text": text}]}
    return SampledMessage(new_id("msg"), fingerprint(item), render_assistant("final", text))


def facts(link: ChainLink) -> list[object]:
    """Return all that a chain means, however many links it has: what it is, and what becomes of it."""
    asked = new_link(link, response_id="asked", started_on="", messages=[render_text("user", "And now?")])
    told = new_link(link, response_id="told", started_on="", messages=[render_tool_output("functions.f", "42")])
    calls: dict[str, str] = {}
    for part in link.lineage():
        calls = {**part.calls, **calls}
    return [
        (link.response_id, link.root_id, link.started_on, link.own.ends_final, calls),
        *(each.prompt_tokens() for each in (link, asked, told)),
        *(drop_oldest(each, len(each.prompt_tokens()) // 2) for each in (link, asked, told)),
        asked.own.settles,
        told.own.settles,
        dict(link.awaited),
        link.all_late_tools(),
    ]


async def same_chain(store: BaseResponseStore, stored: StoredResponse) -> bool:
    """Whether the store gives back the chain that was saved; not compared by `==`, which recurses."""
    link = present(await store.chain(stored.project, str(stored.response["id"])))
    assert stored.link is not None
    assert link.total_bytes <= stored.link.total_bytes
    return facts(link) == facts(stored.link)


async def save_all(store: BaseResponseStore, turns: Iterable[StoredResponse]) -> None:
    for each in turns:
        await store.save(each)


async def save_chain(store: BaseResponseStore, *, length: int) -> StoredResponse:
    """Save `length` responses that continue each other, and return the last."""
    last = Turn().saying(*exchange(0))
    chain = [last]
    for number in range(1, length):
        last = Turn().after(last).saying(*exchange(number))
        chain.append(last)
    await asyncio.gather(*(store.save(stored) for stored in chain))
    return last


class StoreContract:
    """Give a subclass the fixture `store`: a started one, closed at the end."""

    async def test_gives_back_what_was_saved(self, store: BaseResponseStore) -> None:
        stored = Turn().saying(*exchange(1))
        await store.save(stored)
        assert await same_chain(store, stored)

    async def test_a_chain_through_a_tool_loop(self, store: BaseResponseStore) -> None:
        question = Turn().saying(
            render_text("developer", "Be brief."),
            render_text("user", "What is the weather?"),
            render_assistant("analysis", "I look it up."),
            render_call("functions.weather", '{"city": "Paris"}'),
            calls=[
                call("weather", "call_1"),
                {"type": "additional_tools", "tools": [{"type": "custom", "name": "sql"}]},
            ],
        )
        answer = Turn().after(question).saying(render_tool_output("functions.weather", "Rain."), *exchange(1)[1:])
        thanks = Turn().after(answer).saying(*exchange(2))  # a user message after a final answer settles it all
        for stored in (question, answer, thanks):
            await store.save(stored)
            assert await same_chain(store, stored)
        link = present(await store.chain(thanks.project, str(thanks.response["id"])))
        assert link.call_names("call_1") == ["weather"]
        assert not link.has_call("call_2")
        assert (link.awaited, link.all_late_tools()) == (
            {"call_1": "function_call"},
            [{"type": "custom", "name": "sql"}],
        )

    async def test_forks_share_what_came_before(self, store: BaseResponseStore) -> None:
        trunk = Turn().saying(*exchange(0))
        forks = [Turn().after(trunk).saying(*exchange(number)) for number in range(1, 4)]
        await save_all(store, (trunk, *forks))
        for stored in (trunk, *forks):
            assert await same_chain(store, stored)

    async def test_a_link_without_messages(self, store: BaseResponseStore) -> None:
        empty = Turn().saying()
        later = Turn().after(empty).saying(*exchange(1))
        await store.save(empty)
        await store.save(later)
        assert await same_chain(store, empty)
        assert await same_chain(store, later)

    @pytest.mark.parametrize("unknown", IDS_NOBODY_MADE, ids=ascii)
    async def test_knows_nothing_of_ids_it_never_saw(self, store: BaseResponseStore, unknown: str) -> None:
        turn = Turn()
        await store.save(turn.saying(*exchange(1)))
        assert await store.chain(turn.project, unknown) is None
        assert await store.sampled_items(turn.project, [unknown]) == {}

    async def test_another_project_sees_nothing(self, store: BaseResponseStore) -> None:
        item = sampled_text("Answer.")
        stored = Turn().saying(*exchange(1), sampled=[item])
        await store.save(stored)
        assert await store.chain("another", str(stored.response["id"])) is None
        assert await store.sampled_items("another", [item.id]) == {}

    async def test_what_failed_is_kept_but_not_continued(self, store: BaseResponseStore) -> None:
        item = sampled_text("Half an ans")
        failed = Turn().failed(sampled=[item])
        await store.save(failed)
        assert await store.chain(failed.project, str(failed.response["id"])) is None
        assert await store.sampled_items(failed.project, [item.id]) == {item.id: item}

    async def test_finds_items_by_id(self, store: BaseResponseStore) -> None:
        first, second, third = (sampled_text(text) for text in ("One.", "Two.", "Three."))
        stored = Turn().saying(*exchange(1), sampled=[first, second])
        await store.save(stored)
        await store.save(Turn(stored.project).saying(sampled=[third]))
        found = await store.sampled_items(stored.project, {third.id, first.id, "msg_unknown"})
        assert found == {first.id: first, third.id: third}
        assert found[first.id].message.kind is MessageKind.FINAL
        assert await store.sampled_items(stored.project, []) == {}

    async def test_finds_many_items_at_once(self, store: BaseResponseStore) -> None:
        items = {item.id: item for item in (sampled_text(f"Item {number}.") for number in range(1200))}
        stored = Turn().saying(sampled=items.values())
        await store.save(stored)
        assert await store.sampled_items(stored.project, list(items)) == items

    async def test_the_same_response_many_times_at_once(self, store: BaseResponseStore) -> None:
        stored = Turn().saying(*exchange(1), sampled=[sampled_text("Answer.")])
        await asyncio.gather(*(store.save(stored) for _ in range(20)))
        assert await same_chain(store, stored)

    async def test_many_at_once(self, store: BaseResponseStore) -> None:
        saved = [Turn().saying(*exchange(number)) for number in range(200)]
        await asyncio.gather(*(store.save(stored) for stored in saved))
        assert all(await asyncio.gather(*(same_chain(store, stored) for stored in saved)))

    async def test_a_chain_deeper_than_the_stack(self, store: BaseResponseStore) -> None:
        last: Any = await save_chain(store, length=1500)
        assert len(list(last.link.lineage())) == 1500
        assert await same_chain(store, last)

    async def test_continues_what_was_never_stored(self, store: BaseResponseStore) -> None:
        stored = Turn().saying(*exchange(0))
        remembered = Turn().after(stored).saying(*exchange(1))
        also_remembered = Turn().after(remembered).saying(*exchange(2))
        later = [Turn().after(also_remembered).saying(*exchange(number)) for number in (3, 4)]
        await save_all(store, (stored, *later))
        for response in (stored, *later):
            assert await same_chain(store, response)
        for response in (remembered, also_remembered):
            assert await store.chain(response.project, str(response.response["id"])) is None

    async def test_takes_every_text(self, store: BaseResponseStore) -> None:
        untamed = UNTAMED.replace("\ud800", "")  # tokens are made of UTF-8
        item = sampled_text(untamed)
        turn = Turn()
        stored = turn.saying(render_text("user", untamed), calls=[call("f", UNTAMED)], sampled=[item])
        stored.response["metadata"] = {UNTAMED: UNTAMED, "large": 2**200}
        await store.save(stored)
        assert await same_chain(store, stored)
        link = present(await store.chain(turn.project, turn.response_id))
        assert link.call_names(UNTAMED) == ["f"]
        assert await store.sampled_items(turn.project, [item.id]) == {item.id: item}

    async def test_a_cancelled_save_disturbs_no_other(self, store: BaseResponseStore) -> None:
        chance = random.Random(1)
        saved = [Turn().saying(*exchange(number)) for number in range(100)]
        tasks = [asyncio.create_task(store.save(stored)) for stored in saved]
        cancelled = set(chance.sample(range(100), 50))
        await asyncio.sleep(0)
        for number in cancelled:
            tasks[number].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for number, stored in enumerate(saved):
            if number not in cancelled:
                assert await same_chain(store, stored)

    async def test_can_be_used(self, store: BaseResponseStore) -> None:
        assert await store.check() is None
        assert await store.check() is None

    async def test_closing_twice(self, store: BaseResponseStore) -> None:
        await store.save(Turn().saying(*exchange(1)))
        await store.aclose()
        await store.aclose()
