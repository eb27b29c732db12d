"""The browser of these tests."""

from tests.kit.browser import browser  # noqa: F401 - a fixture
