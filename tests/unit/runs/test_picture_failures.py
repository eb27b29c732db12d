"""What clients are told of pictures that an engine does not take, or that are gone."""

import pytest

from engine.errors import EngineError, PictureGone, PicturesRefused
from tests.kit.fakes import FakeEngine, Site

REFUSED = "At most 1 image(s) may be provided in one prompt."
GONE = "An image of this conversation is not there any more: it was deleted."


@pytest.mark.parametrize(("error", "message"), [(PicturesRefused(REFUSED), REFUSED), (PictureGone("/secret"), GONE)])
async def test_it_is_the_request_s_fault(error: EngineError, message: str) -> None:
    site = Site(FakeEngine([[error]]))
    reading = await site.begin(input="hi")
    await reading.to_the_end()
    problem = reading.run.problem
    assert problem is not None
    assert (problem.status, problem.message, problem.param) == (400, message, "input")
