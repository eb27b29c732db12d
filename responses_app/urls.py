"""The API's paths, resolved by `ApiMiddleware`. Base URLs without /v1 work too: some clients leave it out."""

from django.urls import re_path

from responses_app.views import (
    chat_completions,
    completions,
    containers,
    conversations,
    decisions,
    embeddings,
    files,
    health,
    metrics,
    models,
    openapi,
    responses,
    vector_stores,
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
    re_path(r"^(?:v1/)?vector_stores/?$", vector_stores.index),
    *(
        re_path(rf"^(?:v1/)?vector_stores/(?P<vector_store_id>[^/]+){below}/?$", view)
        for below, view in (
            ("", vector_stores.detail),
            ("/search", vector_stores.search),
            ("/files", vector_stores.files),
            ("/files/(?P<file_id>[^/]+)", vector_stores.file),
            ("/files/(?P<file_id>[^/]+)/content", vector_stores.content),
            ("/file_batches", vector_stores.batches),
            ("/file_batches/(?P<batch_id>[^/]+)", vector_stores.batch),
            ("/file_batches/(?P<batch_id>[^/]+)/cancel", vector_stores.cancel_batch),
            ("/file_batches/(?P<batch_id>[^/]+)/files", vector_stores.batch_files),
        )
    ),
    re_path(r"^(?:v1/)?completions/?$", completions.create),
    re_path(r"^(?:v1/)?decisions/?$", decisions.create),
    re_path(r"^(?:v1/)?embeddings/?$", embeddings.create),
    re_path(r"^(?:v1/)?models/?$", models.index),
    re_path(r"^(?:v1/)?models/(?P<model>.+)$", models.detail),
    re_path(r"^(?:v1/)?openapi\.json$", openapi.openapi),
    re_path(r"^(?:v1/)?openapi/?$", openapi.page),
    re_path(r"^health/?$", health.health),
    re_path(r"^ready/?$", health.ready),
    re_path(r"^metrics/?$", metrics.metrics),
]
