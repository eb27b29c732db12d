"""What stores raise: `StoreError`, whose text is for logs, and `UnknownCursor`, which is a client's mistake."""


class StoreError(Exception):
    """The store could not keep or find something, for a reason of its own; the text is for logs."""

    passing = False  # whether the same may work a little later: the database is away, busy or slow
    cause: str | None = None  # a sentence for operators, where the reason is one of those that are known


class UnknownCursor(Exception):
    """A cursor is no id: it names nothing in a list, now or ever."""


class StoreClosed(StoreError):
    """This process stops and has closed the store: nobody has to hear of it."""


class NotMigrated(StoreError):
    """The database lacks what this version keeps there. Who finds that tells the log once; clients may read it."""

    def __init__(self) -> None:
        super().__init__("The database lacks migrations: run `respsite manage migrate`.")
