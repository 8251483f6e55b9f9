"""A failure after a commit does not make it look as if it had not happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardline.datasource.errors import Corrupt, Determinate, Indeterminate, InvalidUsage
from shardline.datasource.overwrite import overwrite
from shardline.datasource.transactions.rows import TRANSACTIONS
from support.models.shards import SETTINGS, World, rows, schema_of, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardline.datasource.stores.objects import Objects

ERRORS = [
    InvalidUsage("the token has expired", code="ACCESS_DENIED"),
    Corrupt("a checksum"),
    Determinate("connection lost"),
    OSError("EIO"),
]

OLD, NEW = table((1, "old")), table((2, "new"))


def breaking(world: World, log: str, error: Exception, *, armed: list[bool]) -> Objects:
    """A store on which nothing works any more once a record was created in `log`."""
    store = world.objects()
    broken: list[bool] = []

    def wrapped(name: str) -> Callable[..., Any]:
        operation = getattr(store, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if broken:
                raise error
            answer = operation(*arguments, **named)
            if armed and name == "create" and arguments[0].startswith(f"{log}/log/"):
                broken.append(True)
            return answer

        return call

    for name in ("create", "put", "get", "get_many", "open", "delete", "delete_many", "entries"):
        setattr(store, name, wrapped(name))
    return store


def contents(world: World) -> dict[Any, int]:
    with world.client().reader("a") as reader:
        return dict(rows(reader.snapshot()))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_transaction_that_was_committed_says_so(world: World, error: Exception) -> None:
    """Whatever comes of applying it, and of giving its leases up."""
    armed: list[bool] = []
    client = world.client(SETTINGS, breaking(world, "%5Ftransactions", error, armed=armed))
    client.create("a", schema_of())
    client.writer("a").append_now(OLD)
    transaction = client.transaction()
    transaction.read("a")
    transaction.append("a", NEW)
    armed.append(True)
    assert transaction.commit() is not None
    assert contents(world) == {(1, "old"): 1, (2, "new"): 1}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_overwrite_that_was_committed_says_so(world: World, error: Exception) -> None:
    """Its reader's lease is given up afterwards: a lease that stays expires."""
    armed: list[bool] = []
    client = world.client(SETTINGS, breaking(world, "a", error, armed=armed))
    client.create("a", schema_of())
    writer = client.writer("a", writer="w")
    writer.append_now(OLD, sequence=1)
    staged = writer.stager().stage([NEW])
    commit_at = type(writer).commit_at

    def commit(*arguments: Any, **named: Any) -> Any:
        armed.append(True)  # the records before it are of the reader
        return commit_at(writer, *arguments[1:], **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(writer), "commit_at", commit)
        overwrite(writer, staged, sequence=2, attempt="t1")
    assert contents(world) == {(2, "new"): 1}


@pytest.mark.parametrize("error", ERRORS[:3], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("verb", ["register", "forget"])
def test_a_registration_that_was_changed_and_not_told_may_have_happened(
    world: World, error: Exception, verb: str
) -> None:
    """It has: so it is not an error that says that it certainly has not."""
    armed: list[bool] = []
    client = world.client(SETTINGS, breaking(world, "%5Ftransactions", error, armed=armed))
    client.create("a", schema_of())
    txns = client.transactions()
    txns.register(*([] if verb == "register" else ["a"]))
    armed.append(True)
    with pytest.raises(Indeterminate, match="again"):
        getattr(txns, verb)("a")
    fresh = world.client().transactions()
    assert fresh.registered() == (["a"] if verb == "register" else [])
    getattr(fresh, verb)("a")
    assert (world.client().state("a").registered is not None) == (verb == "register")
    assert TRANSACTIONS in world.client().shards()
