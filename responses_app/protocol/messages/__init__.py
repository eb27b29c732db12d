"""Anthropic's Messages API as data: requests, the blocks of messages, the events of a stream, and errors."""
