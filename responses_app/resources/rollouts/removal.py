"""How roll-outs are removed: first nobody finds them any more, then their generations go, in steps.

Tokens are large: a roll-out may have 256 MiB. So a step, which is a transaction, has at most `STEP_ROWS` generations
and about `STEP_BYTES` of them. Behind each step it pauses for as long as that took: others write meanwhile, on SQLite,
too, where there is one writer at a time. A process that dies between two steps leaves what is `GONE` to the next purge.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Exists, F, OuterRef, QuerySet
from django.db.models.functions import Length

from responses_app.kit.clock import utc
from responses_app.kit.kept import removes
from responses_app.kit.places import leave
from responses_app.resources.rollouts.model import Rollout, RolloutGeneration
from responses_app.resources.rollouts.rows import GONE, LISTED, rollouts_of

AT_ONCE = 50  # roll-outs whose generations are removed together
STEP_ROWS = 200  # generations that one step removes
STEP_BYTES = 4 << 20  # of their tokens; one generation may have more
MAX_STEPS = 10  # of one purge
MAX_PAUSE = 1.0  # seconds behind a step

Step = Callable[[BaseDatabaseWrapper], bool]


def hide(connection: BaseDatabaseWrapper, name: str, mine: Mapping[str, object]) -> str | None:
    """Let nobody find a roll-out any more, and nothing be added to it; return its own id, None where there is none.

    `mine` is what the rows have that may be meant: their project, and perhaps more.
    """
    with transaction.atomic(using=connection.alias):
        row = rollouts_of(connection).select_for_update().filter(name=name, **mine).first()
        if row is None:
            return None
        _leave(connection, row.project, {row.name: row.pk})
        row.project, row.name = GONE, row.pk
        row.save(using=connection.alias, update_fields=["project", "name"])
        return str(row.pk)


def hide_made_until(rows: "QuerySet[Rollout]", until: float) -> None:
    """Let nobody find those of these any more that were made until then: the next purge removes them."""
    rows.filter(created_at__lte=utc(until)).update(project=GONE, name=F("pk"))


def hide_old(connection: BaseDatabaseWrapper, before: float | None, *, spared: Collection[str] = ()) -> list[str]:
    """Hide roll-outs to which nothing came since `before`, and return the ids of some that are hidden.

    Those of the projects `spared` stay.
    """
    rows = rollouts_of(connection)
    gone = list(rows.filter(project=GONE).values_list("pk", flat=True)[:AT_ONCE])
    if before is None or len(gone) == AT_ONCE:
        return gone
    with transaction.atomic(using=connection.alias):
        # Who is adding something has the lock, and then it is not old any more.
        old = (
            rows.filter(last_at__lt=utc(before))
            .exclude(project__in=[GONE, *spared])
            .select_for_update(skip_locked=True)
        )
        found = list(old.order_by("last_at").values_list("pk", "project", "name")[: AT_ONCE - len(gone)])
        ids = [own for own, _, _ in found]
        for project in sorted({project for _, project, _ in found}):
            _leave(connection, project, {name: own for own, of, name in found if of == project})
        rows.filter(pk__in=ids).update(project=GONE, name=F("pk"))
    return gone + ids


def _leave(connection: BaseDatabaseWrapper, project: str, places: Mapping[str, str]) -> None:
    """Note the places of roll-outs that are hidden; an id of a roll-out's own, which is its name too, is its place."""
    named = {name: own for name, own in places.items() if name != own}
    leave(connection.alias, project, LISTED, named, at=datetime.now(UTC))


def remove_some(connection: BaseDatabaseWrapper, ids: Sequence[str]) -> bool:
    """Remove a few generations of hidden roll-outs; return whether none is left for this process."""
    rows = RolloutGeneration.objects.using(connection.alias).filter(rollout_id__in=ids)
    size, some = 0, list[int]()
    with transaction.atomic(using=connection.alias):
        sizes = rows.annotate(size=Length("tail") + Length("sampled") + Length("logprobs") + Length("detail"))
        # What another process removes now is left to it.
        found = sizes.select_for_update(skip_locked=True).order_by("rollout_id", "number").values_list("pk", "size")
        candidates = list(found[: STEP_ROWS + 1])
        for key, its_size in candidates[:STEP_ROWS]:
            size += its_size
            if some and size > STEP_BYTES:
                break
            some.append(key)
        rows.filter(pk__in=some).delete()
    return len(some) == len(candidates)


def remove_hidden(connection: BaseDatabaseWrapper, ids: Sequence[str]) -> int:
    """Remove hidden roll-outs that have no generation any more; return how many those were."""
    left = RolloutGeneration.objects.using(connection.alias).filter(rollout_id=OuterRef("pk"))
    return rollouts_of(connection).filter(~Exists(left), pk__in=ids, project=GONE).delete()[0]


async def in_steps(run: Callable[[Step], Awaitable[bool]], ids: Sequence[str], *, steps: int | None = None) -> bool:
    """Remove generations until none is left, or for so many steps; return whether none is left."""
    taken = 0
    while steps is None or taken < steps:
        began = time.monotonic()
        if await run(lambda connection: remove_some(connection, ids)):
            return True
        taken += 1
        await asyncio.sleep(min(MAX_PAUSE, time.monotonic() - began))
    return False


@removes(Rollout, at_once=AT_ONCE)
def _remove_some_of(rows: "QuerySet[Rollout]", ids: Sequence[str]) -> None:
    # First nobody finds them, so nothing is added to them any more. The next purge removes what is left of them.
    rows.update(project=GONE, name=F("pk"))
    connection = connections[rows.db]
    if remove_some(connection, ids):
        remove_hidden(connection, ids)


def remove_all_hidden(connection: BaseDatabaseWrapper) -> None:
    """Remove what is left of hidden roll-outs, of whichever project, in steps: others write between them."""
    hidden = rollouts_of(connection).filter(project=GONE)
    while ids := list(hidden.values_list("pk", flat=True)[:AT_ONCE]):
        while not remove_some(connection, ids):
            pass
        if not remove_hidden(connection, ids):
            return  # another process removes the last of them
