"""The duty that has responses read into the index: it goes on until nothing is left, and after a failure."""

import asyncio

from responses_app.kit.errors import StoreError
from responses_app.runs.words import WordReader


class Index:
    """An index whose steps return, or raise, what stands in a list; then nothing is left."""

    def __init__(self, *steps: bool | StoreError) -> None:
        self.steps = list(steps)
        self.all_read = asyncio.Event()

    async def read_some(self) -> bool:
        step = self.steps.pop(0) if self.steps else False
        if not self.steps:
            self.all_read.set()
        if isinstance(step, StoreError):
            raise step
        return step


async def test_it_reads_on_until_nothing_is_left_and_looks_again_also_after_a_failure() -> None:
    index = Index(True, True, False, StoreError("away"), True, False)
    reader = WordReader(index, seconds=0.001)
    reader.start()
    await asyncio.wait_for(index.all_read.wait(), 30)
    await reader.aclose()


async def test_it_ends_in_the_middle_of_a_step() -> None:
    begun = asyncio.Event()

    class Endless(Index):
        async def read_some(self) -> bool:
            begun.set()
            await asyncio.Event().wait()
            return True

    reader = WordReader(Endless())
    reader.start()
    await begun.wait()
    await reader.aclose()
