"""The API's paths, resolved by `ApiMiddleware`. Base URLs without /v1 work too: some clients leave it out."""

from django.urls import re_path

from responses_app.views import containers, conversations, files, health, metrics, models, openapi, responses

urlpatterns = [
    re_path(r"^(?:v1/)?responses/?$", responses.create),
    re_path(r"^(?:v1/)?responses/input_tokens/?$", responses.input_tokens),
    re_path(r"^(?:v1/)?responses/compact/?$", responses.compact),
    re_path(r"^(?:v1/)?responses/(?P<response_id>[^/]+)/?$", responses.detail),
    re_path(r"^(?:v1/)?responses/(?P<response_id>[^/]+)/cancel/?$", responses.cancel),
    re_path(r"^(?:v1/)?responses/(?P<response_id>[^/]+)/input_items/?$", responses.input_items),
    re_path(r"^(?:v1/)?responses/(?P<response_id>[^/]+)/tool_outputs/?$", responses.tool_outputs),
    re_path(r"^(?:v1/)?conversations/?$", conversations.index),
    re_path(r"^(?:v1/)?conversations/(?P<conversation_id>[^/]+)/?$", conversations.detail),
    re_path(r"^(?:v1/)?conversations/(?P<conversation_id>[^/]+)/items/?$", conversations.items),
    re_path(r"^(?:v1/)?conversations/(?P<conversation_id>[^/]+)/items/(?P<item_id>.+?)/?$", conversations.item),
    re_path(r"^(?:v1/)?containers/?$", containers.index),
    re_path(r"^(?:v1/)?containers/(?P<container_id>[^/]+)/?$", containers.detail),
    re_path(r"^(?:v1/)?containers/(?P<container_id>[^/]+)/files/?$", containers.files),
    re_path(r"^(?:v1/)?containers/(?P<container_id>[^/]+)/files/(?P<file_id>[^/]+)/?$", containers.file),
    re_path(r"^(?:v1/)?containers/(?P<container_id>[^/]+)/files/(?P<file_id>[^/]+)/content/?$", containers.content),
    re_path(r"^(?:v1/)?files/?$", files.index),
    re_path(r"^(?:v1/)?files/(?P<file_id>[^/]+)/?$", files.detail),
    re_path(r"^(?:v1/)?files/(?P<file_id>[^/]+)/content/?$", files.content),
    re_path(r"^(?:v1/)?models/?$", models.index),
    re_path(r"^(?:v1/)?models/(?P<model>.+)$", models.detail),
    re_path(r"^(?:v1/)?openapi\.json$", openapi.openapi),
    re_path(r"^health/?$", health.health),
    re_path(r"^ready/?$", health.ready),
    re_path(r"^metrics/?$", metrics.metrics),
]
