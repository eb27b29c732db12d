"""The API's paths, resolved by `ApiMiddleware`. Base URLs without /v1 work too: some clients leave it out."""

from django.urls import re_path

from responses_app.views import (
    chat_completions,
    completions,
    conversations,
    decisions,
    embeddings,
    health,
    metrics,
    models,
    responses,
    stored_chats,
)

urlpatterns = [
    re_path(r"^(?:v1/)?responses/?$", responses.create),
    re_path(r"^(?:v1/)?responses/input_tokens/?$", responses.input_tokens),
    re_path(r"^(?:v1/)?responses/compact/?$", responses.compact),
    re_path(r"^(?:v1/)?responses/(?P<response_id>[^/]+)/?$", responses.detail),
    re_path(r"^(?:v1/)?responses/(?P<response_id>[^/]+)/cancel/?$", responses.cancel),
    re_path(r"^(?:v1/)?responses/(?P<response_id>[^/]+)/input_items/?$", responses.input_items),
    re_path(r"^(?:v1/)?responses/(?P<response_id>[^/]+)/tool_outputs/?$", responses.tool_outputs),
    re_path(r"^(?:v1/)?chat/completions/?$", chat_completions.index),
    re_path(r"^(?:v1/)?chat/completions/(?P<completion_id>[^/]+)/?$", stored_chats.detail),
    re_path(r"^(?:v1/)?chat/completions/(?P<completion_id>[^/]+)/messages/?$", stored_chats.messages),
    re_path(r"^(?:v1/)?conversations/?$", conversations.index),
    re_path(r"^(?:v1/)?conversations/(?P<conversation_id>[^/]+)/?$", conversations.detail),
    re_path(r"^(?:v1/)?conversations/(?P<conversation_id>[^/]+)/items/?$", conversations.items),
    re_path(r"^(?:v1/)?conversations/(?P<conversation_id>[^/]+)/items/(?P<item_id>.+?)/?$", conversations.item),
    re_path(r"^(?:v1/)?completions/?$", completions.create),
    re_path(r"^(?:v1/)?decisions/?$", decisions.create),
    re_path(r"^(?:v1/)?embeddings/?$", embeddings.create),
    re_path(r"^(?:v1/)?models/?$", models.index),
    re_path(r"^(?:v1/)?models/(?P<model>.+)$", models.detail),
    re_path(r"^health/?$", health.health),
    re_path(r"^ready/?$", health.ready),
    re_path(r"^metrics/?$", metrics.metrics),
]
