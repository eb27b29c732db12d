"""The chain of the audit trail in both databases: whole, broken in many ways, and written by several at once."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections, transaction
from django.db.models import F

from responses_app.resources.audit import chain
from responses_app.resources.audit.chain import MAX_PROBLEMS, append, hash_of, hashed, last, lines, verify
from responses_app.resources.audit.fields import NO_HASH, Action, Actor, ActorKind, AuditEntry, Head, microseconds
from responses_app.resources.audit.model import AuditRow
from tests.contracts.adapters.conftest import OpenDatabase
from tests.contracts.adapters.stores import race
from tests.kit.server import server_environ

MANY = 100_000  # entries
# A process that adds entries one by one: as many as it is told, and on until it sees one of the other process.
WRITER = """
import sys
import django
django.setup()
from django.db import connection
from responses_app.resources.audit.model import AuditRow
from responses_app.resources.audit.fields import Action, Actor, ActorKind, AuditEntry
from responses_app.resources.audit.chain import append
own, other, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for place in range(100 * number):
    if place >= number and AuditRow.objects.filter(project=other).exists():
        break
    append(connection, [AuditEntry(Actor(ActorKind.COMMAND), Action.KEY_CREATED, str(place), own)])
"""
ROOT = Actor(ActorKind.USER, "1", "root", "127.0.0.1")


@pytest.fixture
def alias(url: str, open_database: OpenDatabase) -> Iterator[str]:
    """A database with an empty trail."""
    with open_database(url) as alias, closing(connections[alias]):
        AuditRow.objects.using(alias).all().delete()
        yield alias


def entry(subject: str = "resp_1", **detail: object) -> AuditEntry:
    return AuditEntry(ROOT, Action.CONTENT_VIEWED, subject, "team", detail)


def filled(alias: str, number: int) -> Head:
    """Make a trail of so many entries, in bulk; return its head."""
    before, at, rows = NO_HASH, datetime(2026, 11, 1, tzinfo=UTC), []
    adapt = connections[alias].ops.adapt_datetimefield_value
    for place in range(1, number + 1):
        created_at = at + timedelta(seconds=place)
        texts = ("content_viewed", "user", "1", "root", "team", f"resp_{place}", "127.0.0.1", "{}")
        before = hash_of(before, (place, microseconds(created_at), *texts))
        rows.append((place, adapt(created_at), *texts, before))
    names = ", ".join(field.column for field in AuditRow._meta.concrete_fields)
    places = ", ".join(["%s"] * len(rows[0]))
    with connections[alias].cursor() as cursor, transaction.atomic(using=alias):
        cursor.executemany(f"INSERT INTO responses_app_auditrow ({names}) VALUES ({places})", rows)
    return Head(number, before)


def rows_of(alias: str, *numbers: int) -> list[AuditRow]:
    return list(AuditRow.objects.using(alias).filter(pk__in=numbers).order_by("pk"))


def change(alias: str) -> None:
    AuditRow.objects.using(alias).filter(pk=50).update(actor_name="somebody else")


def remove(alias: str) -> None:
    AuditRow.objects.using(alias).filter(pk=50).delete()


def remove_and_close_the_gap(alias: str) -> None:
    remove(alias)
    later = AuditRow.objects.using(alias).filter(pk__gt=50).order_by("pk")
    for row in later:  # one by one: a primary key is unique at any time
        AuditRow.objects.using(alias).filter(pk=row.pk).update(number=F("number") - 1)


def put_in(alias: str) -> None:
    """Put one in behind 50, with the hash that it has to have there, and move all others on."""
    for row in AuditRow.objects.using(alias).filter(pk__gt=50).order_by("-pk"):
        AuditRow.objects.using(alias).filter(pk=row.pk).update(number=F("number") + 1)
    (before,) = rows_of(alias, 50)
    row = AuditRow(number=51, created_at=before.created_at, action="signed_in", actor_kind="user")
    row.hash = hash_of(before.hash, hashed(row))
    row.save(using=alias, force_insert=True)


def swap(alias: str) -> None:
    one, other = rows_of(alias, 50, 51)
    one.number, other.number = other.number, one.number
    AuditRow.objects.using(alias).filter(pk__in=(50, 51)).delete()
    AuditRow.objects.using(alias).bulk_create([one, other])


def date_back(alias: str) -> None:
    AuditRow.objects.using(alias).filter(pk=50).update(created_at=datetime(2020, 1, 1, tzinfo=UTC))


def hash_anew(alias: str) -> None:
    """Change one, with the hash that it has to have then; what is behind it does not fit."""
    change(alias)
    before, row = rows_of(alias, 49, 50)
    row.hash = hash_of(before.hash, hashed(row))
    row.save(using=alias, force_update=True)


def cut_off_the_beginning(alias: str) -> None:
    AuditRow.objects.using(alias).filter(pk__lte=10).delete()


BROKEN: list[tuple[Callable[[str], None], str]] = [
    (change, "Entry 50 does not fit behind entry 49"),
    (remove, "Entry 50 is missing before entry 51"),
    (remove_and_close_the_gap, "Entry 50 does not fit behind entry 49"),
    (put_in, "Entry 52 does not fit behind entry 51"),
    (swap, "Entry 50 does not fit behind entry 49"),
    (date_back, "Entry 50 does not fit behind entry 49"),
    (hash_anew, "Entry 51 does not fit behind entry 50"),
    (cut_off_the_beginning, "Entries 1 to 10 are missing before entry 11"),
]


@pytest.mark.parametrize(("breaks", "said"), BROKEN, ids=lambda each: getattr(each, "__name__", ""))
def test_each_way_to_break_it_is_found(alias: str, breaks: Callable[[str], None], said: str) -> None:
    head = filled(alias, 100)
    assert verify(head, using=alias).problems == []
    breaks(alias)
    assert said in verify(using=alias).problems[0]


def test_a_cut_and_a_new_trail_are_found_with_a_head_that_was_kept(alias: str) -> None:
    early, head = filled(alias, 100), Head(0, NO_HASH)
    for number in range(5):
        head = append(connections[alias], [entry(f"resp_{number}")])
    assert head.number == 105
    assert verify(early, using=alias).head == head, "what came behind the head that was kept is no problem"
    AuditRow.objects.using(alias).filter(pk__gt=90).delete()
    cut = verify(using=alias)
    assert (cut.problems, cut.head.number) == ([], 90), "without a head nobody knows"
    assert "ends with entry 90, but had 105" in verify(head, using=alias).problems[0]
    AuditRow.objects.using(alias).all().delete()
    assert "ends with entry 0, but had 105" in verify(head, using=alias).problems[0]
    append(connections[alias], [entry()] * 110)
    assert "the trail was written anew" in verify(head, using=alias).problems[0]


def test_100_000_entries_are_verified_and_broken_in_five_ways(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # PostgreSQL finds the same in fewer, and takes longer to be filled.
    many = MANY if connections[alias].vendor == "sqlite" else MANY // 10
    head = filled(alias, many)
    fetched = 0

    def counting(*fields: object) -> str:
        nonlocal fetched
        fetched += 1
        return hash_of(*fields)  # type: ignore[arg-type]

    monkeypatch.setattr(chain, "hash_of", counting)
    whole = verify(head, using=alias)
    assert (whole.entries, whole.head, whole.problems, fetched) == (many, head, [], many)
    rows = AuditRow.objects.using(alias)
    rows.filter(pk=1_000).update(subject="resp_other")
    rows.filter(pk=2_000).update(created_at=datetime(2020, 1, 1, tzinfo=UTC))
    rows.filter(pk=3_000).delete()
    one, other = rows_of(alias, 4_000, 4_001)
    one.number, other.number = other.number, one.number
    rows.filter(pk__in=(4_000, 4_001)).delete()
    rows.bulk_create([one, other])
    rows.filter(pk__in=(5_000, 5_001)).delete()
    rows.bulk_create([AuditRow(number=5_000, created_at=one.created_at, hash=NO_HASH, action="put_in")])
    verdict = verify(head, using=alias)
    told = "\n".join(verdict.problems)
    for found in (
        "Entry 1000 does not fit",
        "Entry 2000 does not fit",
        "Entry 3000 is missing before entry 3001",
        "Entry 4000 does not fit",
        "Entry 5000 does not fit",
        "Entry 5001 is missing before entry 5002",
    ):
        assert found in told
    assert verdict.head == head, "what stands behind is read, too"
    AuditRow.objects.using(alias).filter(pk=many).delete()
    assert "its end was cut off" in verify(head, using=alias).problems[-1]


def test_few_problems_are_told(alias: str) -> None:
    filled(alias, 100)
    AuditRow.objects.using(alias).update(project="other")
    verdict = verify(using=alias)
    assert len(verdict.problems) == MAX_PROBLEMS
    assert verdict.has_more


def test_writers_at_once_make_one_chain(alias: str) -> None:
    def write(writer: int) -> None:
        with closing(connections[alias]):  # a thread has a connection of its own
            for number in range(25):
                append(connections[alias], [entry(f"{writer} {number} {part}") for part in range(2)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    verdict = verify(using=alias)
    assert (verdict.entries, verdict.problems) == (400, [])
    subjects = [row.subject for row in AuditRow.objects.using(alias).order_by("pk")]
    for writer in range(8):
        own = [subject for subject in subjects if subject.startswith(f"{writer} ")]
        assert own == [f"{writer} {number} {part}" for number in range(25) for part in range(2)]


@pytest.mark.parametrize(
    "text", ["a\0b", "\ud800", "\u202eabc", "x" * 5_000, "'; DROP TABLE x; --", "<script>", "", "😀" * 300]
)
def test_hostile_texts_are_kept_and_fit(alias: str, text: str) -> None:
    actor = Actor(ActorKind.NOBODY, text, text, text)
    append(connections[alias], [AuditEntry(actor, Action.SIGN_IN_FAILED, text, text, {"of": text, text: 1})])
    append(connections[alias], [entry()])
    assert verify(using=alias).problems == []
    assert len(list(lines(using=alias))) == 2
    assert last(alias).number == 2


def test_what_is_no_row_of_ours_is_a_problem_and_no_crash(alias: str) -> None:
    if connections[alias].vendor != "sqlite":
        pytest.skip("PostgreSQL refuses such values")
    filled(alias, 5)
    with connections[alias].cursor() as cursor:
        cursor.execute("UPDATE responses_app_auditrow SET created_at = 'never', detail = x'00ff' WHERE number = 3")
    assert "Entry 3 does not fit" in verify(using=alias).problems[0]
    assert len(list(lines(using=alias))) == 5


def test_two_processes_that_write_at_once_make_one_chain(url: str, alias: str) -> None:
    each = 200
    race(WRITER, ("one", "other", str(each)), ("other", "one", str(each)), environ=server_environ(DATABASE_URL=url))
    verdict = verify(using=alias)
    trail = list(AuditRow.objects.using(alias).order_by("number").values_list("number", "project", "subject"))
    assert (verdict.problems, verdict.entries) == ([], len(trail))
    assert [number for number, _, _ in trail] == list(range(1, len(trail) + 1))
    for own in ("one", "other"):
        places = [int(place) for _, project, place in trail if project == own]
        assert places == list(range(len(places)))  # each in its order, none lost
        assert len(places) >= each
