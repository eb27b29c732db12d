"""Who may see what in the admin and the pages beside it: the permissions that this is asked of, by their names."""

from typing import Any

SEE = "responses_app.view_response"  # that responses exist, and their figures: state, ids, model, key, times, tokens
SEE_CONTENT = "responses_app.see_content"  # what people wrote, and what models answered
USE = "responses_app.add_response"  # the API by a session: the playground


def sees_figures(user: Any) -> bool:
    """Whether a user may see the figures of what all projects have."""
    return bool(user.is_active and user.is_staff and user.has_perm(SEE))


def sees_content(user: Any) -> bool:
    """Whether a user may see what people wrote and what models answered, of what else they may see."""
    return bool(user.is_active and user.is_staff and user.has_perm(SEE_CONTENT))
