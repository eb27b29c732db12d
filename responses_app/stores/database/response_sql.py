"""The statements that write responses, what belongs to them, and workers (see `kit.sql`)."""

from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.kit.sql import Row, Writing, columns, for_update, update, upsert
from responses_app.models import (
    BriefResponse,
    ChainPart,
    ChatChoice,
    LogPart,
    PublicName,
    Response,
    SampledItem,
    Worker,
)
from responses_app.models.playground import ChatLabel
from responses_app.protocol.requests import resources
from responses_app.stores.base import Claim

# Literally as in the condition of the index `response_running`, else SQLite would not use it.
RUNNING = f"({', '.join(repr(status) for status in resources.RUNNING)})"

RESPONSES = Response._meta.db_table

# The one condition under which a worker writes of a response: its claim is the present one, and it has not ended.
# `claim_row` gives the values of `_CLAIM`; `epoch` stays as it is, so the row tells afterwards whose it was.
HELD = f"{RESPONSES}.worker = %s AND {RESPONSES}.epoch = %s AND {RESPONSES}.status IN {RUNNING}"
_CLAIM = ["claimant", "epoch"]


def claim_row(claim: Claim) -> Row:
    """Return what a row needs to have to be written under `HELD`."""
    return {"claimant": claim.worker, "epoch": claim.epoch}


def _held(writing: Writing) -> Writing:
    """Write a row of a response only as long as it is held."""
    # An update has a WHERE already; of an upsert the condition belongs to its DO UPDATE.
    joined = " AND " if writing.sql.startswith("UPDATE") else " WHERE "
    return Writing(f"{writing.sql}{joined}{HELD}", [*writing.columns, *_CLAIM])


PARTS = ChainPart._meta.db_table
SAMPLED = SampledItem._meta.db_table
LOGS = LogPart._meta.db_table
NAMES = PublicName._meta.db_table
CHOICES = ChatChoice._meta.db_table
BRIEF = BriefResponse._meta.db_table
LABELS = ChatLabel._meta.db_table
WORKERS = Worker._meta.db_table

KEEP_RESPONSE = _held(upsert(Response))
# Which chat it belongs to was decided when it was accepted first, and so was the name of its request.
_STAY = ("id", "chat_id", "suspicion", "request_name")
CHANGE_RESPONSE = _held(update(Response, [column for column in columns(Response) if column not in _STAY]))
SUSPECT_RESPONSE = _held(update(Response, ["suspicion"]))
BEGIN_RESPONSE = _held(
    Writing(
        f"UPDATE {RESPONSES} SET status = 'in_progress' WHERE status = 'queued' AND id = %s AND project = %s",
        ["id", "project"],
    )
)
END_RESPONSE = _held(
    update(
        Response,
        [
            *("status", "body", "worker", "request", "size", "input_tokens", "cached_tokens", "output_tokens"),
            *("first_token_ms", "duration_ms"),
        ],
    )
)
# Of dead workers' responses, which the transaction has locked.
CLAIM_RESPONSE = Writing(
    f"UPDATE {RESPONSES} SET worker = %s, epoch = epoch + 1, suspicion = %s WHERE id = %s",
    ["worker", "suspicion", "id"],
)
FAIL_RESPONSE = Writing(
    f"UPDATE {RESPONSES} SET status = %s, body = %s, worker = '', request = NULL, epoch = epoch + 1 WHERE id = %s",
    ["status", "body", "id"],
)
KEEP_NAME = Writing(
    f"INSERT INTO {NAMES} (id, project, name, leg) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
    ["id", "project", "name", "leg"],
)
KEEP_BRIEF = Writing(f"INSERT INTO {BRIEF} (id, project) VALUES (%s, %s) ON CONFLICT DO NOTHING", ["id", "project"])
END_BRIEF = Writing(f"UPDATE {BRIEF} SET ended_at = %s WHERE id = %s", ["ended_at", "id"])
KEEP_PART = upsert(ChainPart)
KEEP_CHOICE = upsert(ChatChoice)
KEEP_SAMPLED = upsert(SampledItem)
KEEP_LOG = Writing(
    f"INSERT INTO {LOGS} (response_id, position, data) VALUES (%s, %s, %s) "
    "ON CONFLICT (response_id, position) DO UPDATE SET data = excluded.data",
    ["response_id", "position", "data"],
)
DROP_LOG_PARTS = f"DELETE FROM {LOGS} WHERE position > 0 AND response_id IN ({{ids}})"  # once the whole log is at 0
KEEP_WORKER = upsert(Worker)


def append_log(connection: BaseDatabaseWrapper) -> Writing:
    """Return the statement that appends to the log of a response as long as it is held.

    The response is locked, so that whoever claims it waits for this transaction and reads what it wrote. A part that is
    there already is replaced by a longer one only: an append that comes late, after its answer was given up, changes
    nothing.
    """
    return Writing(
        f"INSERT INTO {LOGS} (response_id, position, data) SELECT id, %s, %s FROM {RESPONSES} "
        f"WHERE id = %s AND {HELD} {for_update(connection, 'FOR SHARE')} "
        "ON CONFLICT (response_id, position) DO UPDATE SET data = excluded.data "
        f"WHERE LENGTH(excluded.data) > LENGTH({LOGS}.data)",
        ["position", "data", "id", *_CLAIM],
    )
