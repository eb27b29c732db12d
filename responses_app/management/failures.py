"""What commands say when they cannot go on."""


def database_failed(error: Exception) -> SystemExit:
    """Return the end of a command whose database does not work, in one sentence."""
    reason = str(error).strip().partition("\n")[0]
    return SystemExit(
        f"respsite: the database cannot be used ({reason}). Check that it runs, what DATABASE_URL names, and that "
        "`respsite manage migrate` has been run."
    )
