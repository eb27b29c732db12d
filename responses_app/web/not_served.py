"""What OpenAI's API has and this server does not, by the first part of a path below /v1.

`tests/conformance/test_paths_sdk.py` walks all that OpenAI's SDK can ask for: each path is served, or named here. A
request for one is answered with what is said here, and the page "What is not built yet" has the same.
"""

from collections.abc import Mapping

_CHATS = "the input and what is remembered of it are in /v1/responses and /v1/conversations"
_OPERATORS = "the operator of this server has the admin and `respsite manage`"
NOT_SERVED: Mapping[str, str] = {
    "agents": "hosted agents; an agent runs in its client here, on /v1/responses",
    "assistants": f"the older Assistants API; {_CHATS}",
    "audio": "speech and transcriptions; models here read and write text",
    "batches": "batches of requests; send them with `background: true`",
    "chatkit": "sessions of ChatKit",
    "content_provenance_checks": "where a picture came from",
    "evals": "evaluations",
    "fine_tuning": "training",
    "images": "images by themselves; the tool `image_generation` of /v1/responses makes them",
    "live": "spoken sessions",
    "moderations": "moderation",
    "organization": f"keys, projects, users and usage of an organization; {_OPERATORS}",
    "projects": f"roles in projects; {_OPERATORS}",
    "realtime": "spoken sessions; the WebSocket of /v1/responses is for text",
    "safety": "alerts and cases",
    "skills": "skills that OpenAI hosts",
    "threads": f"threads of the Assistants API; {_CHATS}",
    "vaults": "secrets for hosted agents",
    "videos": "videos",
    "webhook_endpoints": "webhooks; poll a response, or read its stream",
    "webhook_event_types": "webhooks; poll a response, or read its stream",
}
METHODS_NOT_SERVED: Mapping[str, str] = {  # of paths that are served
    "DELETE /models/{model}": "models are the operator's: the setting MODELS names them",
}
