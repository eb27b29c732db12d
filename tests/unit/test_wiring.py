"""What the composition root hands to whom."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from responses_app.settings.conf import from_environ
from responses_app.stores.clock import StoreClock, own_clock
from responses_app.wiring.site import build_site

TTL, AHEAD = 300, 600.0


@pytest.mark.parametrize(("age", "forgotten"), [(0.0, False), (TTL - 10.0, False), (TTL + 10.0, True)])
@pytest.mark.parametrize("ahead", [AHEAD, -AHEAD])
def test_how_old_a_response_is_that_runs_is_judged_by_the_clock_that_dates_it(
    age: float, forgotten: bool, ahead: float
) -> None:
    """The store's clock is ten minutes from this machine's: a new response would be too old, or an old one new."""
    settings, _ = from_environ({"RESPONSES_STORE_TTL": str(TTL)})
    site = build_site(settings)
    clock = site.service.now
    assert isinstance(clock, StoreClock)
    asked = own_clock()
    clock.heard(time.time() + ahead, asked=asked, answered=asked)
    plan = SimpleNamespace(stored=True, created_at=site.service.now() - age, origin=SimpleNamespace(project="p"))
    run: Any = SimpleNamespace(deleted=False, plan=plan)
    assert site.registry.is_forgotten(run) is forgotten
