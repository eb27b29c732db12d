"""The kinds of servers, and folders for them, as the tests of the transports have them."""

from tests.wire.transports.conftest import kind, open_socket  # noqa: F401 - fixtures
