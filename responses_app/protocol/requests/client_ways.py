"""What is known of a client by the name that it gives itself (`User-Agent`), where nothing else tells."""

from responses_app.protocol.requests.create_fields import ARGUMENTS_AS_OBJECTS
from responses_app.protocol.requests.requests import CreateRequest

# Vercel's AI SDK, and OpenCode by it: the arguments of calls are read as JSON, and written again without spaces.
RESPELLING = "ai-sdk/"


def as_its_client_goes_on(create: CreateRequest, user_agent: str) -> CreateRequest:
    """Return a request whose response carries what its client would not give back as it was sampled."""
    if RESPELLING not in user_agent:
        return create
    return create.model_copy(update={"include": [*(create.include or ()), ARGUMENTS_AS_OBJECTS]})
