"""The texts of the page of errors: when each code occurs, and what its reader can do."""

from collections.abc import Mapping

Told = tuple[str, str]  # when, what to do

_AGAIN = "Send the request again. If it happens again, give the operator the request's id from the message."
_WAIT = "Wait as long as `retry-after` says, then send the request again. OpenAI's SDKs do this by themselves."

REQUESTS: Mapping[str, Told] = {
    "approval_in_use": (
        "The request for approval has been answered already, and the response that makes its call is still running.",
        "Wait for that response, and continue it.",
    ),
    "array_above_max_length": (
        "An array has too many entries: `input` or `messages` (`MAX_INPUT_ITEMS`), `tools` (1024), or the inputs of "
        "embeddings and completions.",
        "Send fewer; continue a response with `previous_response_id` and only the new items.",
    ),
    "chat_not_found": (
        "The project has no such chat in the playground, or it is another key's or another user's.",
        "List yours with `GET /v1/playground/chats`.",
    ),
    "chunks_too_small": (
        "The body has hundreds of chunks, of less than 64 bytes on average.",
        "Write larger pieces, or send the body whole, with `Content-Length`.",
    ),
    "concurrent_request": (
        "A response of this connection is still running, and it may have one at a time (`WEBSOCKET_BUSY=reject`).",
        "Wait for its last event, or open another connection.",
    ),
    "context_length_exceeded": (
        "The prompt does not fit into the model's context, or would not fit even without its older messages.",
        "Shorten the input, set `truncation` to `auto`, compact the chain, or start a new one.",
    ),
    "default_version_in_use": (
        "The default version of a skill that has others cannot be deleted.",
        "Make another version the default, or delete the skill.",
    ),
    "empty_array": ("`messages` of a chat completion is empty.", "Send at least one message."),
    "files_full": (
        "The project has reached its limit of files or bytes.",
        "Delete files that are not needed.",
    ),
    "frames_too_small": (
        "The messages of a WebSocket have hundreds of frames, of less than 64 bytes on average.",
        "Send each message in one frame.",
    ),
    "host_not_allowed": (
        "The request's `Host` is not one of this server's names.",
        "Use another name of the server; its operator can add one to `ALLOWED_HOSTS`.",
    ),
    "failed_to_download_image": (
        "An image of the request could not be fetched from its URL, or lies at an address that is not public.",
        "Check the URL, or send the image as a data URL. The operator can allow hosts with "
        "`INPUT_IMAGES_ALLOWED_HOSTS`.",
    ),
    "http_error": (
        "A call of an MCP server is demanded, and its tools could not be listed.",
        "See the message: it has the server and the cause.",
    ),
    "idempotency_answer_deleted": (
        "The response that was made with this `Idempotency-Key` was deleted.",
        "Choose another key to make a new one ([Safe retries](../how-to/idempotency.md)).",
    ),
    "idempotency_answer_lost": (
        "The first request with this `Idempotency-Key` was cut off when its server stopped, and its answer is lost. It "
        "is not carried out again.",
        "Check whether it took effect. To send it again, choose another key.",
    ),
    "idempotency_answer_too_long": (
        "The answer to the first request with this `Idempotency-Key` was too long to be kept "
        "(`IDEMPOTENCY_MAX_ANSWER_BYTES`).",
        "Choose another key to carry the request out again.",
    ),
    "idempotency_answer_unreadable": (
        "The answer to the first request with this `Idempotency-Key` was encrypted with a key that the server does not "
        "have any more.",
        "Choose another key to carry the request out again. The operator can keep old keys in "
        "`REASONING_ENCRYPTION_KEYS`.",
    ),
    "idempotency_key_reused": (
        "The `Idempotency-Key` was sent with another request before (422).",
        "Send the same request again, or choose another key.",
    ),
    "invalid_api_key": (
        "The `Authorization` header has no API key, the key is unknown, expired or revoked, its project is archived, "
        "or the session has ended.",
        "Send a valid key, or sign in again. The operator makes keys with `respsite manage create_key`.",
    ),
    "invalid_content_encoding": (
        "The body is not what its `Content-Encoding` says, or was cut.",
        "Send it whole, or leave the header out if it is not compressed.",
    ),
    "invalid_encrypted_content": (
        "An encrypted item was changed, or encrypted by another server, for another project, or with a removed key.",
        "Send the item unchanged, or leave it out. With `FOREIGN_SEALS=note` the model reads a note in its place.",
    ),
    "invalid_idempotency_key": (
        "The header `Idempotency-Key` is empty, too long, or has characters that are not allowed.",
        "Send 1 to 255 printable ASCII characters, such as a UUID.",
    ),
    "invalid_image": (
        "An image of the request cannot be shown to the model: it is damaged, too large, of a format that is not read, "
        "or one too many. The message says which.",
        "Send it as PNG, JPEG, WebP or GIF, smaller, or leave it out ([Vision](../how-to/vision.md)).",
    ),
    "invalid_json": ("The body, or the message, is not one JSON object.", "Send one JSON object, as text in UTF-8."),
    "invalid_skill": (
        "The bundle of a skill is not a zip file, has no good SKILL.md, or has something that a skill may not have.",
        "The message says what it is. See Skills.",
    ),
    "invalid_stream_id": (
        "The name of a lane is empty, too long, or has characters that are not allowed.",
        "Use 1 to 256 letters, digits, underscores, hyphens and periods.",
    ),
    "invalid_type": ("The field in `param` has a value of the wrong type.", "Send the type that the message names."),
    "invalid_value": (
        "The field in `param` has a value that is not allowed, or that does not fit the rest of the request.",
        "Send a value that the message allows.",
    ),
    "message_too_large": (
        "A WebSocket message is larger than `WEBSOCKET_MAX_MESSAGE_BYTES`. The connection is closed after it.",
        "Connect again, and send less: `previous_response_id` and only the new items.",
    ),
    "method_not_allowed": ("The path does not support this method.", "Use one of those in the `allow` header."),
    "missing_required_parameter": ("The field in `param` is missing.", "Send it."),
    "missing_scope": (
        "The key does not have the scope for this operation, or it is an admin key outside of "
        "`/v1/organization`, or none there.",
        "Use another key: the message names the scope, or the kind of key.",
    ),
    "missing_beta_header": (
        "The request has `multi_agent`, or is a `response.inject`, and the header of its beta is missing.",
        "Send `OpenAI-Beta: responses_multi_agent=v1` with the request, or with the handshake of the WebSocket.",
    ),
    "model_not_found": (
        "404: no engine of this server has the model. 403: the key may not use it.",
        "Use one of the models in the message, or in `GET /v1/models`.",
    ),
    "mutually_exclusive_parameters": (
        "Two fields exclude each other, like `conversation` and `previous_response_id`.",
        "Send one of them.",
    ),
    "key_expired": ("An API key that has expired cannot be changed.", "Create another one."),
    "key_not_found": (
        "The project has no such API key or service account, or it was deleted.",
        "List those there are.",
    ),
    "organization_full": (
        "There are as many projects, keys of a project, or admin keys as there may be.",
        "Delete what is not needed; the message says how.",
    ),
    "project_archived": ("An archived project cannot be changed, and gets no keys.", "Use another project."),
    "project_exists": ("There is a project of this name, perhaps an archived one.", "Choose another name."),
    "project_not_found": ("There is no such project.", "List them with `GET /v1/organization/projects`."),
    "insufficient_quota": (
        "The key, its project or all projects together have spent what they may spend this month.",
        "Wait for the next month, or ask the operator for a higher limit.",
    ),
    "spend_limit_not_found": ("There is no spend limit.", "Set one with `POST` to the same path."),
    "no_prices": (
        "`PRICES` is not set, so nothing is known of costs, and spending cannot be limited.",
        "The operator can set `PRICES`.",
    ),
    "too_many_results": (
        "One bucket of usage has more results than one answer may have.",
        "Group by less, or ask for some projects only.",
    ),
    "not_found": ("This path does not exist.", "See [the paths](paths.md)."),
    "origin_not_allowed": (
        "The request comes from a web page of another origin.",
        "The operator can add its origin to `ALLOWED_ORIGINS`.",
    ),
    "previous_response_in_progress": (
        "The response to continue is still running (400), or another request is continuing it (409).",
        "Wait for its last event.",
    ),
    "previous_response_not_found": (
        "`previous_response_id` names a response that is unknown or deleted, that was not stored and belongs to "
        "another connection, or that cannot be continued.",
        "Send the whole conversation as `input`, or continue an earlier response.",
    ),
    "processing_error": (
        "Something broke in the server before a response began. The log has it under the request's id.",
        _AGAIN,
    ),
    "project_not_allowed": (
        "A user of the admin asked for a project that they may not use.",
        "Choose another project. Superusers may choose any.",
    ),
    "file_too_large": (
        "The input file of a batch is larger than `BATCH_MAX_BYTES`.",
        "Split it into several batches.",
    ),
    "invalid_batch_status": ("The batch has ended, so it cannot be cancelled.", "Read its output."),
    "invalid_json_line": ("A line of the input of a batch is not a JSON object.", "Correct the line."),
    "duplicate_custom_id": ("Two lines of a batch have the same `custom_id`.", "Give each its own."),
    "too_many_tasks": ("The input of a batch has more lines than `BATCH_MAX_LINES`.", "Split it."),
    "empty_file": ("The input of a batch has no line.", "Upload a file with lines."),
    "url_mismatch": ("A line of a batch asks for another endpoint than the batch.", "Correct its `url`."),
    "model_mismatch": ("A line of a batch has another model than its first line.", "Make a batch for each model."),
    "line_too_long": ("A line of the input of a batch is larger than `MAX_BODY_BYTES`.", "Shorten the request."),
    "invalid_purpose": (
        "The file was uploaded with another purpose than `batch`.",
        "Upload it again, with the purpose `batch`.",
    ),
    "prompt_not_found": (
        "The project has no such named setup of the playground.",
        "List them with `GET /v1/playground/prompts`.",
    ),
    "rate_limit_exceeded": (
        "A limit of the key or its project is reached; or too many requests run or wait: in the engine, in the "
        "background, or on the connection; or a project has reached its limit of conversations, containers or vector "
        "stores.",
        f"{_WAIT} If a project has reached its limit of objects, delete those that are not needed.",
    ),
    "reader_too_slow": (
        "The client of a streamed chat completion or completion reads too slowly (`STREAM_MAX_LAG_BYTES`). The error "
        "comes inside the stream, which ends.",
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
        "`RESPONSES_MAX_TOOL_OUTPUT_BYTES` (413); the URL (414), or the headers with it (431), than 16 KiB.",
        "Send less, or in several parts.",
    ),
    "response_cancelled": (
        "The answer was cancelled while the model wrote it, by a client or an operator.",
        "Send the request again if you still want an answer.",
    ),
    "response_deleted": (
        "A client, an operator or the project's retention deleted the answer while the model still wrote it.",
        "Send the request again if you still want an answer; with `store: false` there is nothing to delete.",
    ),
    "server_error": (
        "Before any output was sent, something broke in the server, or the model wrote what the request does not "
        "allow.",
        _AGAIN,
    ),
    "audit_unavailable": (
        "What a signed-in user asked for cannot be recorded in the [audit trail](../how-to/audit.md), so it fails.",
        _WAIT,
    ),
    "request_ends_workers": (
        "The request was running when two worker processes died, so it is not run a third time: "
        "[A request that ends workers](../explanation/workers.md#a-request-that-ends-workers).",
        "Change the request, or tell the operator. The same request is taken again after an hour.",
    ),
    "server_is_overloaded": (
        "The engine is loading, unreachable or full; a store cannot be reached; the server is full or stopping; or too "
        "many large messages arrive at once (`WEBSOCKET_MAX_UNFINISHED_BYTES`).",
        _WAIT,
    ),
    "skill_not_found": (
        "The project has no such skill.",
        "List them with `GET /v1/skills`.",
    ),
    "skill_version_not_found": (
        "The skill has no such version.",
        "List them with `GET /v1/skills/{id}/versions`.",
    ),
    "engine_busy": (
        "Another request pauses, resumes or changes the engine now.",
        "Try again when it has been answered.",
    ),
    "engine_not_paused": (
        "The engine runs, and this needs a pause, or ends one.",
        "Pause it first ([Weights that change](../how-to/weights.md)). A pause also ends when its lease does.",
    ),
    "engine_paused": (
        "The engine is paused, and this pauses it itself.",
        "Resume it first, or take the steps of the update one by one.",
    ),
    "engines_differ": (
        "The workers of this server share several engines, and none of them reaches all.",
        "Use `ENGINE=vllm-server`: then all workers have the same engines.",
    ),
    "no_update": (
        "No update of weights has begun.",
        "Begin one first.",
    ),
    "unsupported_engine": (
        "The engine cannot be paused, and its weights cannot be changed. Or a roll-out wants a version of weights, and "
        "the engine does not tell which it has.",
        "Use one of the engines that [Weights that change](../how-to/weights.md) lists.",
    ),
    "weights_refused": (
        "The engine does not accept a step of an update; the message says why, and whether weights may be mixed.",
        "Correct the step, or update the weights again.",
    ),
    "weights_update_open": (
        "An update of weights has begun.",
        "Finish or cancel it first.",
    ),
    "skills_full": (
        "The project has reached its limit of versions of skills.",
        "Delete versions that are not needed.",
    ),
    "stream_not_kept": (
        "The stream of a response cannot be resumed: its log was not stored, or cannot be read.",
        "Get the response without `stream`.",
    ),
    "too_many_prompts": (
        "The project has 200 named setups of the playground already, or they would be larger than 4 MiB together.",
        "Delete one that is not needed.",
    ),
    "rollout_not_found": (
        "The project has no roll-out with this id.",
        "List the roll-outs of the project. One is made by its first request, or by `POST /v1/rollouts`.",
    ),
    "rollout_exists": (
        "The project has a roll-out with this id already.",
        "Use it, or choose another id.",
    ),
    "rollout_ended": (
        "The roll-out has ended: no more requests are part of it.",
        "Begin another roll-out.",
    ),
    "rollout_full": (
        "The roll-out has `ROLLOUT_MAX_GENERATIONS` generations or `ROLLOUT_MAX_BYTES` bytes already.",
        "Begin another roll-out.",
    ),
    "retention_never": (
        "The request needs something to be kept, such as a file, a conversation or a background response, and its "
        "project keeps nothing.",
        "Do what the message says, or have the operator change the retention of the project.",
    ),
    "rollout_stale": (
        "The roll-out has a `max_staleness`, and its oldest tokens are of weights more versions behind. A turn that "
        "runs while the weights change fails with it.",
        "Begin another roll-out.",
    ),
    "weights_not_served": (
        "The roll-out has `weights_wanted`, and the engine has no weights of that version. A turn that runs while the "
        "weights change fails with it.",
        "Update the weights, or begin another roll-out; the message says which weights there are.",
    ),
    "rollout_too_large": (
        "The tree of the roll-out is larger than one answer may be.",
        "Leave its sequences out with `?sequences=false`, or export it.",
    ),
    "too_many_rewards": (
        "The roll-out has 10,000 rewards already.",
        "Give one reward for several turns.",
    ),
    "too_many_webhook_endpoints": (
        "The project has `WEBHOOK_ENDPOINTS_MAX` webhook endpoints already.",
        "Delete one that is not needed.",
    ),
    "invalid_webhook_url": (
        "Webhooks cannot be sent to the URL: it does not begin with `https://`, or its host is not found or not on the "
        "public internet.",
        "Use another URL, or ask the server's operator to set `WEBHOOK_ALLOWED_HOSTS`.",
    ),
    "webhook_endpoint_not_found": (
        "The project has no webhook endpoint with this id.",
        "List the endpoints of the project.",
    ),
    "webhook_test_failed": (
        "The receiver of a webhook did not answer the sample event.",
        "The message says why: start the receiver, or change the endpoint's URL.",
    ),
    "unknown_event_type": (
        "A WebSocket message has no `type`, or an unknown one.",
        "Send one of the types that the message names, like `response.create`.",
    ),
    "unknown_parameter": (
        "A field looks like a misspelling of a known one; with `UNKNOWN_FIELDS=refuse` any unknown field gets this. Or "
        "a tool that cannot run in the background is declared to do so.",
        "Use the name that the message suggests, or leave the field out. "
        "[Request fields](fields.md) lists all of them. "
        "Functions and custom tools can run in the background.",
    ),
    "upload_closed": (
        "The upload was completed or cancelled, or has expired after an hour; a `complete` may be repeated with the "
        "same parts.",
        "Create another upload, and send the parts again.",
    ),
    "unsupported_media_type": (
        "The body's `Content-Type` is not `application/json`, or for files not `multipart/form-data`; or its "
        "`Content-Encoding` is none of gzip, deflate, br and zstd.",
        "Send the right header.",
    ),
    "unsupported_parameter": (
        "The server does not have this feature, or its operator has turned it off.",
        "Do what the message says instead, or leave the field in `param` out: see [Request fields](fields.md).",
    ),
    "unsupported_transfer_encoding": (
        "The body has another transfer encoding than `chunked`, or the header `Transfer-Encoding` comes twice, or "
        "together with `Content-Length`: a proxy could see the end of the body elsewhere.",
        "Send the body in chunks, or whole, with `Content-Length`.",
    ),
    "vector_store_expired": ("The vector store has expired.", "Make a new one, and add its files again."),
    "websocket_connection_limit_reached": (
        "429: this server or this key has reached its limit of open connections. 400: the connection has reached its "
        "lifetime (`WEBSOCKET_LIFETIME_SECONDS`). It is closed in both cases.",
        "429: close others, or try again later. 400: connect again; stored responses can be continued.",
    ),
    "websocket_stream_limit_reached": (
        "The connection has reached its limit of lanes.",
        "Use one of its lanes again, or open another connection.",
    ),
}

TYPES: Mapping[str, Told] = {
    "invalid_request_error": (
        "The request is wrong (400, 405, 408, 413, 415), or the path, model or object does not exist (404). An unknown "
        "id has no code: `param` names the field that has it.",
        "Change it as the message says. 404: check the id; the object may have been deleted or have expired.",
    ),
    "authentication_error": ("The API key is missing or invalid (401).", "Send a valid key."),
    "permission_error": ("The key, the page or the user may not do this (403).", "Use one that may."),
    "conflict_error": ("The request conflicts with the current state (409).", "See its code."),
    "rate_limit_error": ("There are too many requests (429).", _WAIT),
    "external_connector_error": (
        "`tool_choice` demands a call of an MCP server whose tools could not be listed (424).",
        "The message has the server and the cause. Without that demand the model goes on without those tools.",
    ),
    "server_error": (
        "The server could not handle the request (500 or 503).",
        "503: wait as `retry-after` says. 500: see its code.",
    ),
}

RESPONSES: Mapping[str, Told] = {
    "invalid_prompt": (
        "The prompt does not fit into the model's context, the model's chat template refuses the conversation, "
        "a schema turned out not to be enforceable, or `tool_choice` demands a call and there is nothing to call: the "
        "MCP server could not be reached, or has no such tool. The message says which.",
        "Change the request. Trying again does not help.",
    ),
    "rate_limit_exceeded": ("The engine is full.", "Send the request again after the time that the message names."),
    "server_error": (
        "The engine or the server broke or stopped; the outputs of the client's tools did not arrive in time "
        "(`RESPONSES_TOOL_TIMEOUT`); the response could not be stored; the model wrote no summary, or wrote what the "
        "request does not allow. The message says which.",
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
        "Continue it: the model sees its output so far.",
    ),
    "steered": (
        "The client sent `response.steer`; the response ended so that the next one can use that input.",
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
        "The response was interrupted, has failed or was cancelled; or another one of its lane now waits for input "
        "from the client.",
        "Send the input with the next `response.create`.",
    ),
    "response_not_found": (
        "No response of this connection has this id.",
        "Send the id of a response that is running on it.",
    ),
    "steering_not_supported": (
        "A response of a conversation, one with `context_management`, or a warm-up cannot be steered.",
        "Interrupt it, or wait for its end, and send the input with the next request.",
    ),
    "successor_creation_failed": (
        "The response with the steering input could not begin: the connection has reached its lifetime, the response "
        "before it failed or was cancelled, or the request was refused.",
        "Send the same input with a `response.create`, on a new connection if necessary.",
    ),
    "too_many_pending_steers": (
        "Too many steers wait for this response: 16, or more than `WEBSOCKET_MAX_STATE_BYTES`.",
        "Wait for the response that uses them.",
    ),
}

IMAGES: Mapping[str, Told] = {
    "file_not_found": ("The file of an image in the input was deleted, or never existed.", "Send the image again."),
    "image_request_refused": (
        "The image service refused the prompt or a parameter without a code of its own. If it gives one, that is the "
        "code.",
        "Change what its message names.",
    ),
    "image_service_broke": ("The connection broke before the image was complete.", "Ask again."),
    "image_service_failed": ("The image service failed.", "Ask again; its operator finds more in its log."),
    "image_service_invalid": (
        "The answer of the image service is not valid.",
        "The operator should check `IMAGE_SERVICE_URL`: it must be an Images API like OpenAI's.",
    ),
    "image_service_redirects": (
        "The image service answered with a redirect, which is not followed.",
        "The operator should set `IMAGE_SERVICE_URL` to its target.",
    ),
    "image_service_refused": (
        "The image service refused this server.",
        "The operator should check `IMAGE_SERVICE_KEY`.",
    ),
    "image_service_busy": (
        "Too many images were being made, and none of them was finished in time.",
        "Ask again later.",
    ),
    "image_service_timeout": ("The image service did not answer in time.", "Ask again, or for a smaller image."),
    "image_service_unreachable": (
        "The image service cannot be reached.",
        "The operator should check `IMAGE_SERVICE_URL`.",
    ),
    "image_too_large": (
        "An image has more bytes than `IMAGE_MAX_BYTES`.",
        "Ask for a smaller one, or send a smaller one.",
    ),
    "invalid_arguments": (
        "The model's call had no prompt, or a prompt that is too long.",
        "Nothing: the model is told.",
    ),
    "invalid_image": ("An image of the input is neither PNG, nor JPEG, nor WebP.", "Send it in one of these formats."),
    "no_image": ("The model wants to edit an image, but there is no image.", "Nothing: the model is told."),
    "rate_limit_exceeded": ("The image service accepts no more requests at the moment.", "Ask again later."),
    "store_unavailable": ("The image to edit cannot be read: the store is unreachable.", "Ask again shortly."),
    "too_many_images": ("The response has reached its limit of images.", "Continue it in another response."),
}

FILES: Mapping[str, Told] = {
    "invalid_file": (
        "The file is damaged, locked with a password, empty, too large, or takes too long or too much memory to read; "
        "it was deleted; or the vector store is full. The message says which.",
        "Repair the file, or split it, and add it again.",
    ),
    "server_error": ("The server stopped several times while it read the file.", "Add the file again."),
    "unsupported_file": (
        "The file is not text, nor a PDF, DOCX or HTML file.",
        "Save it as one of these, and add it again.",
    ),
}

CLOSES: Mapping[str, Told] = {
    "1000": (
        "The connection has reached its lifetime, there are too many connections, or its key or session has ended: an "
        "error frame before the close says which. The close has its reason, too.",
        "Connect again, if the reason allows it.",
    ),
    "1002": ("The client broke the rules of the WebSocket protocol. The reason says which.", "Correct the client."),
    "1007": ("A text message was not UTF-8.", "Send JSON as UTF-8."),
    "1008": (
        "The client reads too slowly (`STREAM_MAX_LAG_BYTES`), or sends messages in tiny frames or too slowly: then an "
        "error frame before the close says which.",
        "Connect again, and read or send faster.",
    ),
    "1009": ("A message was too large: an error frame before the close names the limit.", "Send less, or use HTTP."),
    "1011": ("The server had an error on the connection.", "Connect again."),
    "1012": ("The server is stopping, or is being replaced.", "Connect again. Stored responses can be continued."),
    "1013": ("Too many large messages were on their way to the server at once.", "Connect again in a while."),
}

OF_ERRORS = (REQUESTS, RESPONSES, STEERING, IMAGES, FILES)  # that have codes
PARTS = (*OF_ERRORS, TYPES, REASONS, CLOSES)
