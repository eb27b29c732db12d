"""Why somebody is not signed in: `SignOnRefused`, with a `Reason` that is recorded and a text that they read."""

from enum import StrEnum


class Reason(StrEnum):
    """The kind of a refusal. `status` is that of the page, `text` is on it."""

    status: int
    text: str

    def __new__(cls, value: str, status: int, text: str) -> "Reason":
        """Make one of its name, its status and its text."""
        reason = str.__new__(cls, value)
        reason._value_, reason.status, reason.text = value, status, text
        return reason

    PROVIDER_AWAY = "provider_away", 503, "{name} cannot be reached now. Try again, or log in with a local account."
    PROVIDER_BUSY = "provider_busy", 503, "Many are signing in at once. Try again in a few seconds."
    PROVIDER_INVALID = (
        *("provider_invalid", 502),
        "{name} gave an answer that this server cannot use. Its log says what is wrong. Try again, or log in with a "
        "local account.",
    )
    PROVIDER_REFUSED = "provider_refused", 403, "{name} did not sign you in."
    SESSION_OVER = "session_over", 403, "Your session is over, and {name} asks you to sign in again."
    STATE_UNKNOWN = (
        *("state_unknown", 400),
        "This sign-in was not started in this browser, took too long, or was finished before. Start again.",
    )
    ISSUER_FOREIGN = (
        *("issuer_foreign", 403),
        "Another provider than {name} (OIDC_ISSUER) sent you back here. Start again.",
    )
    CODE_REFUSED = "code_refused", 403, "{name} did not accept the code that it sent you back with. Start again."
    TOKEN_MALFORMED = "token_malformed", 502, "{name} sent no ID token that can be read."
    TOKEN_ALGORITHM = (
        *("token_algorithm", 502),
        "{name} signs ID tokens with an algorithm that is not accepted. Let it use RS256 or ES256.",
    )
    TOKEN_SIGNATURE = "token_signature", 403, "The ID token is not signed with a key of {name}."
    TOKEN_ISSUER = "token_issuer", 403, "The ID token was issued by somebody else than {name} (OIDC_ISSUER)."
    TOKEN_AUDIENCE = "token_audience", 403, "The ID token was made for another client than this one (OIDC_CLIENT_ID)."
    TOKEN_TIME = (
        *("token_time", 403),
        "The ID token has expired, or is not valid yet. Start again. If it happens again, a clock is wrong.",
    )
    TOKEN_NONCE = "token_nonce", 403, "The ID token belongs to another sign-in. Start again."
    SUBJECT_INVALID = "subject_invalid", 502, "{name} does not say who you are: the claim 'sub' is not valid."
    GROUPS_MISSING = (
        *("groups_missing", 403),
        "{name} does not say which groups you are in: the claim '{claim}' is missing. The operator can let {name} send "
        "it, or set OIDC_GROUPS_CLAIM and OIDC_SCOPES.",
    )
    GROUPS_INVALID = (
        *("groups_invalid", 403),
        "{name} does not say which groups you are in: the claim '{claim}' (OIDC_GROUPS_CLAIM) is not a list of names.",
    )
    GROUPS_UNMAPPED = (
        *("groups_unmapped", 403),
        "None of your groups has a role here. The operator can add one of them to OIDC_ROLES, or add you to a group at "
        "{name}.",
    )
    DISABLED = "disabled", 403, "Your account here is disabled. Ask the operator."


class SignOnRefused(Exception):
    """Somebody is not signed in. `detail` is for the log, and has no token in it; `who` is who it was, if it is known.

    The texts are the person's; what a provider said stands in the log alone.
    """

    def __init__(self, reason: Reason, detail: str = "", *, who: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason
        self.detail = detail
        self.who = who
