"""SDK clients of the shared servers."""

from tests.kit.sdk_fixtures import async_chat, async_client, chat, client  # noqa: F401 - fixtures
