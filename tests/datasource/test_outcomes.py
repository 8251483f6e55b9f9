"""An unknown outcome is never cleaned up after, and never done twice.

The store takes each effect and then says something else: a refusal, an error of its own, damage.
Expected contents are what a writer was told, and what another client, which saw none of it, reads.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from shardline.datasource.errors import (
    Corrupt,
    Determinate,
    Indeterminate,
    InvalidUsage,
    ShardError,
)
from shardline.datasource.frontier import Frontier
from shardline.datasource.maintenance.compact import compact
from shardline.datasource.parts.stage import UncommittedParts
from shardline.datasource.shard.commands.append import AlreadyCommitted, Appended, UpperMismatch
from shardline.datasource.stores.faulty import Fault, Faulty
from shardline.datasource.stores.objects import CREATED, Unresolved
from shardline.datasource.transactions.commit_loop import Committer
from shardline.datasource.transactions.rows import TRANSACTIONS
from support.models.shards import SETTINGS, World, dangling, rows, schema_of, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardline.datasource.client import ShardClient
    from shardline.datasource.stores.objects import CreateOutcome
    from shardline.datasource.transactions.commit_loop import Outcome

BLOBS = dataclasses.replace(SETTINGS, inline_part_bytes=0, compact_inline_bytes=0)

DENIED = InvalidUsage(
    "cannot create: AccessDenied (403)", code="ACCESS_DENIED", hint="ask an admin"
)


class Lying(Faulty):
    """A store that creates a log's entry, answers that it was refused, and cannot read it back.

    Attributes:
        lies: How many such creates there will be.
        told: How many there were.
        late: Whether entries are created later, by `deliver`.
        blind: How often an entry of a log is not read back, after each such create.
        error: What reading it back raises.
        before: Called before each create of a log's entry, with its key.
    """

    blind = 0
    error: ShardError = DENIED
    lies = 0
    told = 0
    before: Callable[[str], object] | None = None
    late = False
    _blinded = 0

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        if "/log/" not in key:
            return super().create(key, value)
        if self.before is not None:
            self.before(key)
        if self.late:
            self.fail("create", Fault.LATE)
        outcome = super().create(key, value)
        if self.lies and outcome is CREATED:
            self.lies -= 1
            self.told += 1
            self._blinded = self.blind
            return Unresolved("AccessDenied (403)", DENIED)
        return outcome

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        if "/log/" in key and self._blinded:
            self._blinded -= 1
            raise self.error
        return super().get(key, start, end)

    @override
    def get_many(self, keys: object) -> list[bytes | None]:
        if self._blinded:
            self._blinded -= 1
            raise self.error
        return super().get_many(keys)  # type: ignore[arg-type]


@pytest.fixture
def lying(world: World) -> Lying:
    return Lying(world.objects(), clock=world.clock, ids=world.ids)


@pytest.fixture
def client(world: World, lying: Lying) -> ShardClient:
    made = world.client(BLOBS, lying)
    made.create("a", schema_of(), key=["id"])
    return made


def contents(world: World, name: str = "a") -> dict[object, int]:
    """As another client reads them, over the store as it is."""
    other = world.client()
    assert dangling(other.machine(name)) == []
    with other.reader(name) as reader:
        return dict(rows(reader.snapshot()))


# --- one create ----------------------------------------------------------------------------------


def test_an_append_whose_record_was_refused_after_the_effect_is_found(
    world: World, client: ShardClient, lying: Lying
) -> None:
    """The token in the log decides, not the status of a repetition."""
    lying.lies = 1
    done = client.writer("a").append_now(table((1, "x")))

    assert isinstance(done, Appended)
    assert lying.told == 1
    assert contents(world) == {(1, "x"): 1}


@pytest.mark.parametrize("error", [DENIED, Corrupt("damaged"), Determinate("gone for now")])
def test_an_append_that_cannot_be_read_back_keeps_its_parts(
    world: World, client: ShardClient, lying: Lying, error: ShardError
) -> None:
    """Whatever the class of the error: the record is there, and names them."""
    lying.lies, lying.blind, lying.error = 99, 99, error
    with pytest.raises(Indeterminate):
        client.writer("a").append_now(table((1, "x")))

    lying.lies = lying.blind = lying._blinded = 0
    assert contents(world) == {(1, "x"): 1}


def test_a_merge_that_cannot_be_read_back_keeps_its_parts(
    world: World, client: ShardClient, lying: Lying
) -> None:
    """Old rows, acknowledged long ago, are in the merged part alone once the inputs are gone."""
    for number in range(4):
        client.writer("a").append_now(table((number, "x")))
    lying.lies, lying.blind, lying.error = 99, 99, Corrupt("damaged")
    with pytest.raises(Indeterminate):
        compact(client.machine("a"), force=True)

    assert lying.told == 1
    assert contents(world) == {(number, "x"): 1 for number in range(4)}


def test_a_transaction_that_cannot_be_read_back_keeps_its_parts(
    world: World, client: ShardClient, lying: Lying
) -> None:
    """Neither the parts of its shards go, nor those of the transactions shard itself."""
    client.create("b", schema_of())
    client.transactions().register("a", "b")
    t = client.transaction()
    t.append("a", table((1, "x")))
    t.append("b", table((2, "y")))
    lying.lies, lying.blind = 99, 99
    with pytest.raises(Indeterminate):
        t.commit()

    lying.lies = lying.blind = lying._blinded = 0
    assert dangling(world.client().machine(TRANSACTIONS)) == []
    assert contents(world) == {(1, "x"): 1}
    assert contents(world, "b") == {(2, "y"): 1}


def test_a_refusal_that_nothing_contradicts_is_unknown_after_three_attempts(
    world: World, client: ShardClient
) -> None:
    """Who may not write hears so soon, with what to do, and not that it did not happen."""

    class Denying(Lying):
        attempts = 0

        @override
        def create(self, key: str, value: bytes) -> CreateOutcome:
            self.attempts += 1
            return Unresolved("AccessDenied (403)", DENIED)

    denying = Denying(world.objects(), clock=world.clock, ids=world.ids)
    log = world.client(BLOBS, denying).location.consensus
    began_ms = world.clock.elapsed_ms()
    head = log.head(client.machine("a").directory)
    assert head is not None

    with pytest.raises(Indeterminate, match=r"AccessDenied \(403\).*ask an admin; read the shard"):
        log.compare_and_set(client.machine("a").directory, head.seqno, b"record")
    assert denying.attempts == 3
    assert world.clock.elapsed_ms() - began_ms < 1000


# --- one drop ------------------------------------------------------------------------------------


def test_a_drop_that_is_repeated_leaves_the_next_shard_of_that_name(
    world: World, client: ShardClient, lying: Lying
) -> None:
    """It may have happened, and then somebody else has made a shard and written to it."""
    client.writer("a").append_now(table((1, "x")))
    first = client.state("a").shard
    lying.lies, lying.blind = 99, 99
    with pytest.raises(Indeterminate, match=rf"drop\('a', shard='{first}'\)"):
        client.drop("a")
    lying.lies = lying.blind = lying._blinded = 0
    other = world.client()
    other.create("a", schema_of(), key=["id"])
    other.writer("a").append_now(table((2, "y")))

    client.drop("a", shard=first)
    assert contents(world) == {(2, "y"): 1}
    other.hold("a", "mine")
    client.drop("a", shard=first)
    assert contents(world) == {(2, "y"): 1}, "not refused for a reader of another shard either"


@pytest.mark.parametrize("name", ["a", TRANSACTIONS])
def test_a_drop_that_loses_a_race_leaves_the_next_shard_of_that_name(
    world: World, client: ShardClient, lying: Lying, name: str
) -> None:
    """Others drop the shard and make it again before the record of this drop is written."""
    other = world.client(BLOBS)

    def make() -> str:
        if name == TRANSACTIONS:
            other.transactions().register("a")
            other.transactions().forget("a")
        else:
            other.create("a", schema_of(), key=["id"])
        return other.state(name).shard

    made = [make()]
    client.state(name)

    def overtake(_key: str) -> None:
        lying.before = None
        other.drop(name)
        made.append(make())

    lying.before = overtake
    client.drop(name)
    assert len(set(made)) == 2
    assert world.client().state(name).shard == made[1]


# --- one append of a registered shard ------------------------------------------------------------


def test_an_append_that_lands_late_is_there_once_and_at_its_own_time(
    world: World, client: ShardClient, lying: Lying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a repetition's look at the ledger and its own commit, at another time."""
    client.transactions().register("a")
    handle = dataclasses.replace(client.writer("a", "w"), redirect=client.redirect("a"))
    commit, asked = Committer.commit, 0

    def commit_again(self: Committer, *args: Any, **kwargs: Any) -> Outcome:
        """The first call's requests are all late; they land right before the second call's."""
        nonlocal asked
        asked += 1
        lying.late = asked == 1
        lying.before = (lambda _: lying.deliver()) if asked > 1 else None
        world.clock.advance(5000)
        return commit(self, *args, **kwargs)

    monkeypatch.setattr(Committer, "commit", commit_again)

    outcome = handle.append_now(table((1, "x")), sequence=1)

    assert asked == 2
    [other] = world.client().readable("a")
    ledger = world.client().transactions().reader.read()
    assert ledger is not None
    with client.reader("a") as reader:
        assert rows(reader.snapshot()) == {(1, "x"): 1}
    assert isinstance(outcome, AlreadyCommitted)
    assert outcome.upper == other.upper == Frontier(ledger.upper)
    assert contents(world) == {(1, "x"): 1}


# --- parts ---------------------------------------------------------------------------------------


class Unforeseen(Exception):
    """An error that nobody thought of."""


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (Determinate("no"), False),
        (InvalidUsage("no"), False),
        (Indeterminate("who knows"), True),
        (Corrupt("damaged"), True),
        (ShardError("of no class"), True),
        (Unforeseen(), True),
        (KeyboardInterrupt(), True),
    ],
)
def test_only_a_proof_deletes_parts_after_a_commit_was_tried(
    client: ShardClient, error: BaseException, kept: bool
) -> None:
    """An error of a class that does not say "nothing happened" says nothing."""
    handle = client.writer("a")
    staged = handle.stager().stage([table((1, "x"))])
    blob = client.location.blob
    with pytest.raises(type(error)), UncommittedParts(blob, staged.runs) as parts, parts.commit():
        raise error

    assert [blob.get(key) is not None for key in staged.blob_keys] == [kept]


def test_parts_are_deleted_by_whatever_fails_before_a_commit(client: ShardClient) -> None:
    """Nothing names them yet. An earlier unknown commit outweighs a later refusal."""
    handle, blob = client.writer("a"), client.location.blob
    for tried in (False, True):
        staged = handle.stager().stage([table((1, "x"))])
        parts = UncommittedParts(blob, staged.runs)
        if tried:
            with pytest.raises(Indeterminate), parts.commit():
                raise Indeterminate("who knows")
            with pytest.raises(Determinate), parts.commit():
                raise Determinate("not this time")
        with pytest.raises(Unforeseen), parts:
            raise Unforeseen
        assert [blob.get(key) is not None for key in staged.blob_keys] == [tried]


def test_of_a_mismatch_the_caller_keeps_its_parts(client: ShardClient) -> None:
    """They are for the next attempt, which expects another upper."""
    writer = client.writer("a")
    staged = writer.stager().stage([table((1, "x"))])

    assert isinstance(
        writer.commit_at(staged, Frontier(99), sequence=1, attempt="t"), UpperMismatch
    )
    assert isinstance(writer.commit_at(staged, Frontier(0), sequence=2, attempt="t"), Appended)
    assert dangling(client.machine("a")) == []
