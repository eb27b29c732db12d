"""What tests of formats share."""

from tests.unit.runs.closing import all_sites_closed, closed  # noqa: F401 - fixtures
