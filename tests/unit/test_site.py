"""The parts of a site: made when they are first asked for, once; and the order in which a stop ends them."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from unittest import mock

from responses_app.settings.conf import from_environ
from responses_app.wiring.parts import Parts, duty, early, late, part
from responses_app.wiring.site import LAST_ROWS_SECONDS, LAST_WORDS_SECONDS, Site


class Done(mock.Mock):
    def __await__(self) -> Iterator[None]:
        return iter(())


class Shop(Parts):
    """Parts of each kind; `calls` has what is made of them, and what is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Done()

    @late
    def report(self) -> Done:
        return self.calls.report("made")

    @part
    def tables(self) -> tuple[Done, ...]:
        time.sleep(0.01)  # so that others ask meanwhile
        return (self.calls.table("made"), self.calls.desk("made"))

    @early
    def guest(self) -> Done:
        return self.calls.guest("made")

    @duty
    def clerk(self) -> Done:
        assert self.tables
        return self.calls.clerk("made")

    @duty
    def boss(self) -> Done:
        return self.calls.boss("made")


def test_a_part_is_made_once_when_it_is_asked_for_and_before_it_what_it_needs() -> None:
    shop, at_once = Shop(), Barrier(4)

    def ask() -> Done:
        at_once.wait(30)
        return shop.clerk

    with ThreadPoolExecutor(4) as threads:
        assert {id(each.result()) for each in [threads.submit(ask) for _ in range(4)]} == {id(shop.clerk)}
    asked = [mock.call.table("made"), mock.call.desk("made"), mock.call.clerk("made")]
    assert shop.calls.mock_calls == asked
    shop.make()
    assert len(shop.calls.mock_calls) == len(asked) + 3


async def test_parts_are_closed_by_their_kind_and_none_is_made_for_that() -> None:
    shop = Shop()
    await shop.close()
    assert shop.calls.mock_calls == []
    shop.make()
    shop.calls.reset_mock()
    await shop.close()
    names = ("boss", "clerk", "table", "desk", "report")
    assert shop.calls.mock_calls == [getattr(mock.call, name)().aclose() for name in names]


STEPS = (  # of a stop, until all that is left is closed together
    mock.call.draining.begin(),
    mock.call.batch_work.stop(),
    mock.call.followers.aclose(),
    mock.call.registry.drain(2.5, mock.ANY, mock.ANY),
    mock.call.webhook_deliverer.aclose(),
    mock.call.completions.stop(),
    mock.call.end_database(LAST_ROWS_SECONDS),
    mock.call.registry.aclose(last_words=LAST_WORDS_SECONDS),
    mock.call.draining.over(LAST_WORDS_SECONDS),
)
DUTIES = "idempotency batch_work approving live_logs engine_doors extensions word_reader expiry upkeep retention"
ENDS = (*STEPS, *(getattr(mock.call, name).aclose() for name in f"{DUTIES} usage_book spending relay".split()))
LAST = (
    *(mock.call.watch.aclose(), mock.call.traces.aclose()),
    *(mock.call.service.threads.close(), mock.call.body_threads.close()),
)


async def test_a_stop_ends_each_part_once_and_in_its_order() -> None:
    settings, _ = from_environ({"SHUTDOWN_GRACE_SECONDS": "2.5", "FILE_SEARCH": "on"})
    site, all_calls, closable = Site(settings), Done(), {"tools"}
    site.make()
    for name in site.declared(early, duty, part, late):
        # There is one tool.
        one = site.tools[0] if name == "tools" else getattr(site, name)
        all_calls.attach_mock(each := Done(spec=type(one)), name)
        setattr(site, name, (each,) if name == "tools" else each)
        closable |= {name} if hasattr(one, "aclose") else set()
    site.end_database = all_calls.end_database
    await site.aclose()
    calls = all_calls.mock_calls
    together = calls[len(ENDS) : -len(LAST)]
    assert (*calls[: len(ENDS)], *calls[-len(LAST) :]) == (*ENDS, *LAST)
    by_name = {str(call).split(".")[1] for call in (*ENDS, *LAST, mock.call.webhook_sender.aclose())}
    assert sorted(map(str, together)) == sorted(f"call.{name}.aclose()" for name in closable - by_name)
    assert {"store", "files", "webhooks", "door", "ledger", "engines", "tools", "polls"} <= closable - by_name
