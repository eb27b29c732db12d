"""The kinds of servers, and folders for them, as the tests of the transports have them."""

from tests.wire.transports.conftest import kind  # noqa: F401 - a fixture
