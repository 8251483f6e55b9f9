"""A subscription sends every change of an object, in order, to one client.

    running = run_subscription(host, incarnation, description, catalog)
    running.acknowledge(response.upper)     a batch was taken: makes room for the next ones
    batch_rows(response)                    a batch as an Arrow table, for the receiver
    resume_at(upper)                        the `as_of` that continues after a batch

A client that polls a view misses what comes and goes between two polls, and reads all of it each
time. Here it receives `SubscribeResponse`s, by Materialize's contract for SUBSCRIBE:

    Batches are intervals `[lower, upper)`, none empty, each beginning where the one before it has
    ended, from `as_of` on. A batch has all changes of its interval, consolidated: one update per
    row and time. With a snapshot, the contents at `as_of` are updates at `as_of`; without, only
    changes strictly after `as_of` come. A batch without updates is progress, and comes when the
    object's upper moves although its contents do not.

    The batch that reaches `up_to`, or the end of the object, has no upper: nothing follows it.
    `as_of = up_to` is one such batch without updates. An error of the object, or of any of its
    inputs, that is live at a time of an interval ends the subscription: the changes before it go
    out, then one last batch with the error and no updates.

    One that cannot begin, because its interval is none, its object is not there or its history is
    gone, is one batch with the error.

    A subscription that ends in any other way sends `SubscribeDropped`, with the upper of its last
    batch.

**To resume** after a batch with upper U: a new subscription with `as_of = resume_at(U)`, which is
U - 1, without snapshot, and of the batch's `shard`. If the object was dropped and made again, its
contents at U - 1 need not be those that the client has: with the id the error is `HISTORY_GONE`,
without it nobody can tell. All before U has come, and changes at U are strictly after U - 1. With
`as_of = U` the changes at U would be lost; with a snapshot all would come again. Before the first
batch there is nothing to resume: begin again. History at U - 1 must still be there: the object's
`RETAIN HISTORY` keeps it for a client that is away. If it is gone, the error is `HISTORY_GONE`, and
the client takes a snapshot and replaces all that it has by it.

A slow client costs no memory. At most `window` batches are on their way; until one is acknowledged
nothing is read, and the next one then has all changes since. A client that acknowledges nothing for
longer than `patience_ms` is dropped: it holds back the object's since.

Invariants:
    Batches are a function of the object's contents and of the times where they were cut.
    History that was not read yet is held as long as the lease lives (`shard_follower`).
    It reads by plain Python and runs no Spark job.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from shardline.app.compute.results import from_ipc
from shardline.app.compute.subscribe.batches import SubscriptionFeed
from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.live_errors import EMPTY_CATALOG, Catalog
from shardline.app.execution.observations import Ended, Health, Hydrated, Progress, Started
from shardline.app.execution.shard_follower import ShardFollower
from shardline.app.execution.spark_errors import full_sentence
from shardline.app.protocol.compute import SubscribeDropped, SubscribeResponse
from shardline.app.protocol.objects import SubscribeDescription
from shardline.app.settings.live import (
    LiveSetting,
    LiveSettings,
    parse_positive_ms,
    parse_size_bytes,
)
from shardline.datasource.background import BackgroundThread
from shardline.datasource.errors import (
    Corrupt,
    Determinate,
    Indeterminate,
    InvalidUsage,
    MissingBlob,
    ShardError,
)
from shardline.datasource.frontier import Frontier
from shardline.datasource.waiting import RetryBudget, RetryPolicy

__all__ = [
    "SUBSCRIBE_KNOBS",
    "RefusedSubscription",
    "RunningSubscription",
    "SubscribeSettings",
    "batch_rows",
    "resume_at",
    "run_subscription",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SubscribeSettings:
    """Settings of subscriptions.

    Attributes:
        window: Most batches that are not acknowledged. 8.
        batch_bytes: Most Arrow memory of one batch. Longer intervals are cut; the changes of one
            time cannot be. 64 MiB.
        patience_ms: A client that acknowledges nothing for so long while the window is full is
            dropped. 60 s.
        poll_ms: Longest pause between two looks at the object. 100 ms.
        retries: Most failures of a store in a row, with a pause of `poll_ms` between. 50.
    """

    window: int = 8
    batch_bytes: int = 64 << 20
    patience_ms: int = 60_000
    poll_ms: int = 100
    retries: int = 50


_DEFAULTS: Final = SubscribeSettings()

SUBSCRIBE_KNOBS: Final[LiveSettings] = {
    "subscribe_batch_limit": LiveSetting("batch_bytes", parse_size_bytes),
    "subscribe_patience": LiveSetting("patience_ms", parse_positive_ms),
}
"""Settings that may change while a subscription runs."""


def batch_rows(response: SubscribeResponse) -> pa.Table:
    """The updates of a batch: the object's columns, `_ts`, `_diff`.

    Raises:
        Determinate: `SUBSCRIPTION_POISONED`: the batch is an error.
    """
    if response.error or response.updates is None:
        raise Determinate(
            f"subscription '{response.id}' has ended by an error at {response.lower}: "
            f"{response.error}",
            code="SUBSCRIPTION_POISONED",
            hint="subscribe again once the error is corrected",
        )
    return from_ipc(response.updates)


def resume_at(upper: int) -> int:
    """The `as_of` of a subscription without snapshot that continues at a batch's `upper`, > 0."""
    assert upper > 0, upper
    return upper - 1


def run_subscription(
    host: Host,
    incarnation: Incarnation,
    description: SubscribeDescription,
    catalog: Catalog = EMPTY_CATALOG,
    settings: SubscribeSettings = _DEFAULTS,
) -> RunningSubscription | RefusedSubscription:
    """Start a subscription, or report to its client why it can never begin.

    Args:
        host: Shared by all objects that run.
        incarnation: Its life; it begins at its `as_of`.
        description: The object, and which of its changes.
        catalog: The inputs of the object, whose errors end the subscription.
        settings: Limits of its window and batches.

    Raises:
        Determinate: The store did not answer; so for every error that another start may not have.
        Indeterminate: The same.
    """
    as_of = incarnation.as_of
    assert as_of is not None, incarnation
    try:
        feed = _open_feed(host, incarnation, description, catalog, as_of)
    except (InvalidUsage, Corrupt, MissingBlob) as error:
        # Not raised: the lane takes a start that fails for one that may succeed later. It would
        # repeat it for ever, and the client would listen to nothing.
        context = {"subscription": incarnation.id, "error": str(error)}
        _log.info("a subscription cannot begin", extra={"context": context})
        refusal = SubscribeResponse(id=incarnation.id, lower=as_of, upper=None, error=str(error))
        _report_batch(host, incarnation, description.on, refusal)
        host.report(Ended(id=incarnation.id, epoch=incarnation.epoch))
        return RefusedSubscription()
    running = RunningSubscription(host, incarnation, feed, description.on, settings)
    running.start()
    return running


def _open_feed(
    host: Host,
    incarnation: Incarnation,
    description: SubscribeDescription,
    catalog: Catalog,
    as_of: int,
) -> SubscriptionFeed:
    """Hold what is followed from `as_of` on.

    Raises:
        InvalidUsage: `up_to` is before `as_of`; the object has no shard, or another one than is to
            go on, or its history at `as_of` is gone.
    """
    if description.up_to is not None and description.up_to < as_of:
        raise InvalidUsage(
            f"subscription '{description.name}' would end at {description.up_to}, before its "
            f"as_of {as_of}",
            code="INVALID_INTERVAL",
            hint="give an UP TO at AS OF or later",
        )
    purpose = f"subscription {incarnation.id}"
    shard = ShardFollower.open(host.client, description.on, since=as_of, purpose=purpose)
    if description.shard not in {"", shard.shard}:
        # Not before it is held: whatever has the name after that is not followed at all.
        shard.close()
        raise _made_again(description.on, description.shard)
    return SubscriptionFeed(host, description, catalog, shard, as_of)


def _made_again(on: str, shard: str) -> InvalidUsage:
    return InvalidUsage(
        f"'{on}' has been dropped and made again: nothing follows what shard '{shard}' had",
        code="HISTORY_GONE",
        hint="subscribe with a snapshot, and put it in the place of what you have",
    )


def _report_batch(host: Host, incarnation: Incarnation, on: str, batch: SubscribeResponse) -> None:
    """Report a batch, and what it says of the subscription."""
    life, report = incarnation, host.report
    report(batch)
    if batch.error:
        report(
            Health(
                id=life.id,
                epoch=life.epoch,
                namespace="compute",
                status="ceased",
                error=batch.error,
            )
        )
    read = {on: batch.upper}
    report(Progress(id=life.id, epoch=life.epoch, read=batch.upper, inputs=read))


class RefusedSubscription:
    """A subscription that could not begin, and whose client has been told; nothing of it runs."""

    def stop(self) -> None:
        """Do nothing."""


class RunningSubscription:
    """A subscription and its thread; made by `run_subscription`."""

    def __init__(
        self,
        host: Host,
        incarnation: Incarnation,
        feed: SubscriptionFeed,
        on: str,
        settings: SubscribeSettings,
    ) -> None:
        """Prepare it; `start` starts it. It closes `feed` at its end."""
        self._host = host
        self._incarnation = incarnation
        self._feed = feed
        self._on = on
        self._settings = settings
        self._lock = threading.Lock()
        self._unacknowledged: list[int | None] = []
        self._thread = BackgroundThread(f"subscribe-{incarnation.query_name}", self._run)
        self._stopped, self._room = self._thread.stopping, self._thread.wake

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End it; sends `SubscribeDropped` if its last batch has not been sent. May be repeated."""
        self._thread.stop()

    def tune(self, settings: SubscribeSettings) -> None:
        """Apply changed settings, from the next batch on."""
        self._settings = settings

    def acknowledge(self, upper: int | None) -> None:
        """Make room: the client has taken the batch that ends at `upper`, and all before it."""
        with self._lock:
            end = Frontier(upper)
            self._unacknowledged = [one for one in self._unacknowledged if Frontier(one) > end]
        self._room.set()

    def _run(self) -> None:
        host, life, feed = self._host, self._incarnation, self._feed
        host.report(Started(id=life.id, epoch=life.epoch, run=life.query_name))
        try:
            with feed:
                why = self._follow()
        except ShardError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client must hear of it
            _log.exception("a subscription failed", extra={"context": {"subscription": life.id}})
            why = full_sentence(error)
        if feed.frontier.time is not None:
            context = {"subscription": life.id, "why": why, "upper": feed.frontier.time}
            _log.info("a subscription was dropped", extra={"context": context})
            host.report(SubscribeDropped(id=life.id, upper=feed.frontier.time))
        host.report(Ended(id=life.id, epoch=life.epoch))

    def _follow(self) -> str:
        """Send batches until the end; returns the reason if it stops before, else ""."""
        host, life, feed = self._host, self._incarnation, self._feed
        began, budget = host.clock.elapsed_ms(), None
        while feed.frontier.time is not None:
            chosen = self._settings
            if not self._has_room():
                return "stopped" if self._stopped.is_set() else "the client is too slow"
            try:
                batch = feed.next(self._stopped, chosen.batch_bytes, chosen.poll_ms)
                budget = None
            except (Determinate, Indeterminate) as error:
                if error.code == "SCHEMA_CHANGED":
                    raise
                # One for failures in a row: a batch that goes out begins another one.
                budget = budget or self._begin_retries()
                if not budget.pause() and not self._stopped.is_set():
                    raise
                continue
            if batch is None:
                return "stopped"
            self._send(batch)
            if batch.lower == life.as_of:
                took = int(host.clock.elapsed_ms() - began)
                host.report(Hydrated(id=life.id, epoch=life.epoch, took_ms=took))
        return ""

    def _begin_retries(self) -> RetryBudget:
        pause_ms, retries = self._settings.poll_ms, self._settings.retries
        policy = RetryPolicy(first_ms=pause_ms, longest_ms=pause_ms, attempts_max=retries + 1)
        return policy.begin(self._host.clock, self._host.ids, self._stopped)

    def _send(self, batch: SubscribeResponse) -> None:
        # Counted before it is sent: its acknowledgement may come while `report` still runs, and
        # would find nothing to take away.
        with self._lock:
            self._unacknowledged.append(batch.upper)
        _report_batch(self._host, self._incarnation, self._on, batch)

    def _has_room(self) -> bool:
        """Wait until fewer batches than the window are on their way.

        False when it is stopped, or when that takes longer than `patience_ms`.
        """
        clock = self._host.clock
        deadline = clock.elapsed_ms() + self._settings.patience_ms
        while True:
            # Before the look: an acknowledgement after it sets the event again, and the wait below
            # returns at once. Cleared after the look, it would be missed.
            self._room.clear()
            with self._lock:
                if len(self._unacknowledged) < self._settings.window:
                    return not self._stopped.is_set()
            left = deadline - clock.elapsed_ms()
            if left <= 0 or self._stopped.is_set():
                return False
            clock.wait(self._room, left)
