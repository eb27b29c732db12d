"""The demo engine: answers by rules, without a model."""
