"""What the audit trail records, and what the roles of its readers and of others may do."""

from docs.extension.tables import code, plain, table
from responses_app.resources.audit.fields import Action
from responses_app.stores.roles import ALL, ROLES


def actions() -> str:
    """Return the table of what is recorded."""
    return table(("action", "when"), ((code(action), plain(action.about)) for action in Action))


def roles() -> str:
    """Return the table of the roles, each with its permissions."""
    rows = []
    for role, has in ROLES.items():
        names = ["all"] if ALL in has.permissions else [code(name) for name in has.permissions]
        rows.append((code(role), plain(has.about), ", ".join(names)))
    return table(("role", "what it may", "permissions"), rows)
