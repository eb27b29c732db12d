"""WebSocket paths. Clients turn `http` into `ws` and append `/responses` to their base URL, with or without /v1."""

from django.urls import re_path

from responses_app.api.endpoints import ENDPOINTS
from responses_app.web.sockets.consumer import ResponsesConsumer

websocket_urlpatterns = [
    *(re_path(each.regex, ResponsesConsumer.as_asgi(area=each.scope)) for each in ENDPOINTS if each.websocket),
    re_path(r"", ResponsesConsumer.as_asgi(area=None)),
]
