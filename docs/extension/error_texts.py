"""What the page of errors says of each code: when it comes, and what its reader can do."""

from collections.abc import Mapping

Told = tuple[str, str]  # when, what to do

_AGAIN = "Send the request again. If it happens again, give the operator the request's id from the message."
_WAIT = "Wait as long as `retry-after` says, then send the request again. OpenAI's SDKs do so by themselves."

REQUESTS: Mapping[str, Told] = {
    "approval_in_use": (
        "The request for approval has been answered already, and the response that makes its call still runs.",
        "Wait for that response, and continue it.",
    ),
    "array_above_max_length": (
        "An array has too many entries: `input` or `messages` (`MAX_INPUT_ITEMS`), `tools` (1024), or the inputs of "
        "embeddings and completions.",
        "Send fewer; continue a response with `previous_response_id` and only the new items.",
    ),
    "chunks_too_small": (
        "The body comes in chunks of less than 64 bytes on average, and there are hundreds of them.",
        "Write larger pieces, or send the body whole, with `Content-Length`.",
    ),
    "concurrent_request": (
        "A response of this connection still runs, and the server takes one at a time (`WEBSOCKET_BUSY=reject`).",
        "Wait for its last event, or open another connection.",
    ),
    "context_length_exceeded": (
        "The prompt does not fit into the model's context, or would not even without its older messages.",
        "Shorten the input, set `truncation` to `auto`, compact the chain, or start a new one.",
    ),
    "empty_array": ("`messages` of a chat completion is empty.", "Send at least one message."),
    "files_full": (
        "The project has as many files, or bytes, as it may.",
        "Delete files that are not needed.",
    ),
    "frames_too_small": (
        "The messages of a WebSocket come in frames of less than 64 bytes on average, and there are hundreds of them.",
        "Send each message in one frame.",
    ),
    "host_not_allowed": (
        "The request's `Host` is not a name that this server is known by.",
        "Use another name of the server; its operator can add one to `ALLOWED_HOSTS`.",
    ),
    "invalid_api_key": (
        "There is no key in the `Authorization` header, or it is unknown, expired or revoked, or a session is over.",
        "Send a key that is valid, or sign in again. The operator makes keys: `respsite manage create_key`.",
    ),
    "invalid_encrypted_content": (
        "A sealed item was changed, or sealed by another server, for another project, or with a key that is gone.",
        "Send the item as it came, or leave it out.",
    ),
    "invalid_json": ("The body, or the message, is not one JSON object.", "Send one JSON object, as text in UTF-8."),
    "invalid_stream_id": (
        "The name of a lane is empty, too long, or has characters that are not allowed.",
        "Use 1 to 256 letters, digits, underscores, hyphens and periods.",
    ),
    "invalid_type": ("The field in `param` has a value of the wrong type.", "Send the type that the message names."),
    "invalid_value": (
        "The field in `param` has a value that is not allowed, or that does not fit the rest of the request.",
        "The message says what is allowed.",
    ),
    "message_too_large": (
        "A WebSocket message is larger than `WEBSOCKET_MAX_MESSAGE_BYTES`. The connection is closed after it.",
        "Connect again, and send less: `previous_response_id` and only the new items.",
    ),
    "method_not_allowed": ("The path has no such method.", "Use one of those in the answer's `allow` header."),
    "missing_required_parameter": ("The field in `param` is missing.", "Send it."),
    "missing_scope": (
        "The key is not made for this operation.",
        "Use another key: the message names the scope.",
    ),
    "model_not_found": (
        "404: no engine of this server has the model. 403: the key may not use it.",
        "Use one of the models in the message, or in `GET /v1/models`.",
    ),
    "mutually_exclusive_parameters": (
        "Two fields both say what comes before, like `conversation` and `previous_response_id`.",
        "Send one of them.",
    ),
    "not_found": ("Nothing is served at this path.", "Look at [the paths](paths.md)."),
    "origin_not_allowed": (
        "A web page of another origin asks from a browser.",
        "The operator can add its origin to `ALLOWED_ORIGINS`.",
    ),
    "previous_response_in_progress": (
        "The response to continue still runs (400), or it is being continued by another request (409).",
        "Wait for its last event.",
    ),
    "previous_response_not_found": (
        "`previous_response_id` names a response that is unknown, forgotten, not stored and of another connection, or "
        "that cannot be continued.",
        "Send the whole conversation as `input`, or continue an earlier response.",
    ),
    "processing_error": (
        "Something broke in the server before a response began. The log has it under the request's id.",
        _AGAIN,
    ),
    "project_not_allowed": (
        "Someone who is signed in to the admin asked for a project that is not open to them.",
        "Choose another project. Superusers may choose among all.",
    ),
    "rate_limit_exceeded": (
        "A limit of the key or its project is reached; or too much runs or waits: in the engine, in the background, or "
        "on the connection; or a project has as many conversations, containers or vector stores as it may.",
        f"{_WAIT} Where something is full, delete what is not needed.",
    ),
    "reader_too_slow": (
        "The client of a streamed chat completion or completion reads so slowly that too much waits for it "
        "(`STREAM_MAX_LAG_BYTES`). It comes inside the stream, which ends.",
        "Read faster, and send the request again.",
    ),
    "request_id_taken": (
        "Another response has this `request_id`.",
        "Choose another one, or leave it out.",
    ),
    "request_timeout": (
        "The request, or the message on a WebSocket, did not arrive in time (`REQUEST_ARRIVAL_SECONDS`).",
        "Send it again, over a faster connection or with less in it.",
    ),
    "request_too_complex": (
        "The JSON has more values than `MAX_JSON_VALUES`.",
        "Send fewer items; continue a response with `previous_response_id` and only the new ones.",
    ),
    "request_too_large": (
        "The body is larger than `MAX_BODY_BYTES`, a file than `FILE_MAX_BYTES`, or a tool's output than "
        "`RESPONSES_MAX_TOOL_OUTPUT_BYTES`.",
        "Send less, or in several parts.",
    ),
    "server_error": (
        "Something broke in the server, or the model said what the request does not allow, and nothing was answered "
        "before.",
        _AGAIN,
    ),
    "server_is_overloaded": (
        "The engine is loading, away or full; a store cannot be reached; the server is full or stopping; or too many "
        "large messages come at once (`WEBSOCKET_MAX_UNFINISHED_BYTES`).",
        _WAIT,
    ),
    "stream_not_kept": (
        "The stream of a response cannot be picked up again: no log of it was kept, or it cannot be read.",
        "Get the response without `stream`.",
    ),
    "unknown_event_type": (
        "A WebSocket message has no `type`, or one that is not known.",
        "Send one of the types that the message names, like `response.create`.",
    ),
    "unknown_parameter": (
        "A field looks like a slip of a known one; with `UNKNOWN_FIELDS=refuse` it is any that is not known. Or a tool "
        "that cannot run in the background asks to do so.",
        "Send the field under the name that the message says, or leave it out. [Fields](fields.md) has all. Functions "
        "and custom tools can run in the background.",
    ),
    "upload_closed": (
        "The upload was completed or cancelled, or its hour is over; a `complete` may be repeated with the same parts.",
        "Create another upload, and send the parts again.",
    ),
    "unsupported_media_type": (
        "The body's `Content-Type` is not `application/json`, or for files not `multipart/form-data`.",
        "Send the header that fits.",
    ),
    "unsupported_parameter": (
        "The server has no such feature, or its operator has turned it off.",
        "Do what the message says instead, or leave the field in `param` out: see [Fields](fields.md).",
    ),
    "unsupported_transfer_encoding": (
        "The body is wrapped in another way than `Transfer-Encoding: chunked`, or the header comes twice, or beside "
        "`Content-Length`: a proxy could see its end elsewhere.",
        "Send it in chunks alone, or whole, with `Content-Length`.",
    ),
    "vector_store_expired": ("The vector store has expired.", "Make a new one, and add its files again."),
    "websocket_connection_limit_reached": (
        "With 429 as many connections are open as may be, on this server or with this key. With 400 the connection's "
        "time is over (`WEBSOCKET_LIFETIME_SECONDS`). It is closed in both cases.",
        "429: close others, or try again later. 400: connect again; stored responses can be continued.",
    ),
    "websocket_stream_limit_reached": (
        "The connection has used all the lanes that it may have.",
        "Use one of its lanes again, or open another connection.",
    ),
}

TYPES: Mapping[str, Told] = {
    "invalid_request_error": (
        "The request is wrong (400, 405, 408, 413, 415), or there is no such path, model or object (404). An unknown "
        "id has no code: `param` says which field named it.",
        "Change it as the message says. 404: look at the id; the object may have been deleted or have expired.",
    ),
    "authentication_error": ("No key lets the request in (401).", "Send another key."),
    "permission_error": ("The key, the page or the user may not do this (403).", "Use one that may."),
    "conflict_error": ("The request does not go with what is there already (409).", "See its code."),
    "rate_limit_error": ("There is too much at once (429).", _WAIT),
    "server_error": (
        "The server could not do it (500 or 503).",
        "503: wait as `retry-after` says. 500: see its code.",
    ),
}

RESPONSES: Mapping[str, Told] = {
    "invalid_prompt": (
        "The prompt does not fit into the model's context, the model's chat template does not take the conversation, "
        "or a schema turned out not to be enforceable. The message says which.",
        "Change the request. Trying again does not help.",
    ),
    "rate_limit_exceeded": ("The engine is full.", "Send the request again after the time that the message names."),
    "server_error": (
        "The engine or the server broke or stopped; the outputs of the client's tools did not come in time "
        "(`RESPONSES_TOOL_TIMEOUT`); a tool that `tool_choice` names is not there; the model gave no summary; or it "
        "said what the request does not allow. The message says which.",
        "Send the request again. The response before it is unchanged and can be continued.",
    ),
}

REASONS: Mapping[str, Told] = {
    "max_output_tokens": (
        "The answer reached `max_output_tokens`, or the end of the model's context.",
        "Continue the response, or ask again with more room.",
    ),
    "interrupted": (
        "The client ended it with `response.interrupt`.",
        "Continue it: the model sees what it had said.",
    ),
    "steered": (
        "The client sent `response.steer`; the response ended so that the next one can take it in.",
        "Nothing: the next response begins by itself.",
    ),
}

STEERING: Mapping[str, Told] = {
    "invalid_input": ("The frame has a field that is missing, wrong or unknown.", "Change it as the message says."),
    "response_already_completed": (
        "The response has completed, or is completing by itself.",
        "Continue it with `response.create`.",
    ),
    "response_not_active": (
        "The response was interrupted, has failed or was cancelled; or another one of its lane now waits for what the "
        "client has to send.",
        "Say it in the next `response.create`.",
    ),
    "response_not_found": ("No response of this connection has this id.", "Send the id of one that runs on it."),
    "steering_not_supported": (
        "A response of a conversation, one with `context_management`, or a warm-up cannot be steered.",
        "Interrupt it, or wait for its end, and say it in the next request.",
    ),
    "successor_creation_failed": (
        "The response that was to take the steering in could not begin: the connection's time is over, the response "
        "before it failed or was cancelled, or the request was refused.",
        "Send the same input with a `response.create`, on a new connection if need be.",
    ),
    "too_many_pending_steers": (
        "Too much waits for this response: 16 steers, or `WEBSOCKET_MAX_STATE_BYTES`.",
        "Wait for the response that takes them in.",
    ),
}

IMAGES: Mapping[str, Told] = {
    "file_not_found": ("The file of an image in the input is gone, or never was.", "Send the image again."),
    "image_request_refused": (
        "The image service refused the prompt or a parameter, and gave no code of its own: with one, that is the code.",
        "Change what its message names.",
    ),
    "image_service_broke": ("The connection broke before the image was there.", "Ask again."),
    "image_service_failed": ("The image service failed.", "Ask again; its operator finds more in its log."),
    "image_service_invalid": (
        "The image service answered what cannot be understood.",
        "The operator should look at `IMAGE_SERVICE_URL`: it has to be an OpenAI-like Images API.",
    ),
    "image_service_redirects": (
        "The image service redirects, which is not followed.",
        "The operator should set `IMAGE_SERVICE_URL` to where it leads.",
    ),
    "image_service_refused": (
        "The image service refused this server.",
        "The operator should check `IMAGE_SERVICE_KEY`.",
    ),
    "image_service_busy": (
        "Too many images were being made: none of them was done in time.",
        "Ask again later.",
    ),
    "image_service_timeout": ("The image service did not answer in time.", "Ask again, or for a smaller image."),
    "image_service_unreachable": (
        "The image service cannot be reached.",
        "The operator should look at `IMAGE_SERVICE_URL`.",
    ),
    "image_too_large": (
        "An image has more bytes than `IMAGE_MAX_BYTES`.",
        "Ask for a smaller one, or send one.",
    ),
    "invalid_arguments": ("The model's call had no prompt, or one that is too long.", "Nothing: the model is told."),
    "invalid_image": ("An image of the input is neither PNG, nor JPEG, nor WebP.", "Send it in one of these formats."),
    "no_image": ("The model wants to edit an image, and there is none.", "Nothing: the model is told."),
    "rate_limit_exceeded": ("The image service takes no more requests now.", "Ask again later."),
    "store_unavailable": ("The image to begin with cannot be read: the store is away.", "Ask again shortly."),
    "too_many_images": ("The response has made as many images as one may.", "Continue it in another response."),
}

FILES: Mapping[str, Told] = {
    "invalid_file": (
        "The file is damaged, locked with a password, empty, too large, or takes too long or too much memory to read; "
        "it was deleted; or the vector store is full. The message says which.",
        "Mend the file, or cut it into several, and add it again.",
    ),
    "server_error": ("The server stopped several times while it read the file.", "Add the file again."),
    "unsupported_file": (
        "The file is not text, nor a PDF, DOCX or HTML file.",
        "Save it as one of these, and add it again.",
    ),
}

CLOSES: Mapping[str, Told] = {
    "1000": (
        "The connection's time is over, there is no room for it, or its key or session has ended: an error frame "
        "before it says which. Or it was read too slowly (`STREAM_MAX_LAG_BYTES`). The close has its reason, too.",
        "Connect again, where the reason allows it.",
    ),
    "1012": ("The server stops, or is replaced.", "Connect again. Stored responses can be continued."),
    "4009": ("A message was too large.", "Connect again, and send less."),
}

OF_ERRORS = (REQUESTS, RESPONSES, STEERING, IMAGES, FILES)  # that have codes
PARTS = (*OF_ERRORS, TYPES, REASONS, CLOSES)
