"""What tests of connections share."""

import pytest

from responses_app.protocol.session.session import WebSocketSession
from tests.unit.protocol.sessions import session


@pytest.fixture
def connection() -> WebSocketSession:
    """A connection that has just been opened."""
    return session()
