"""A sink whose input does not change passes the time by itself, beside its streaming query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from shardline.app.execution.live_errors import EMPTY_CATALOG
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.sink_query import _SinkRun
from shardline.app.storage.sinks.progress import SinkProgress
from shardline.app.storage.sinks.stalls import SinkStalled
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, Indeterminate, ShardError
from shardline.datasource.frontier import Frontier
from support.spark.sinks import Input, host_of, life

COPY = SinkDescription(
    name="out", on="in", format="shard", snapshot=False, options={"shard": "copy"}
)


class Idle:
    """A sink that has everything before 11, and whose query a test plays: see `follow`."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, sink: SinkDescription = COPY
    ) -> None:
        self.client = ShardClient.open(str(folder / "lake"))
        self.input = Input(self.client)
        self.input.step(10, (1, "a", 1))
        host = host_of(cast("Any", None), self.client.location.url, folder)
        monkeypatch.setattr(_SinkRun, "_query_from", lambda *_: None)
        monkeypatch.setattr(_SinkRun, "_commit", lambda *given: self._take(given[2]))
        self.run: Any = _SinkRun(host, life(as_of=10), sink, EMPTY_CATALOG)
        self.waits: list[int] = []
        self.taken: list[int] = []
        self.refused: list[Exception] = []
        with self.run._times:
            self.run._begin()

    def follow(self, waits: int) -> None:
        """Let the query end after so many waits for it."""
        self._left = waits
        with self.run._times:
            self.run._follow(self)

    def _take(self, number: int) -> None:
        """As a micro-batch does right before its rows are written."""
        self.run._check()
        self.taken.append(number)

    def awaitTermination(self, seconds: int) -> bool:  # noqa: N802 - Spark's name
        self.waits.append(seconds)
        self._left -= 1
        return self._left < 0

    def stop(self) -> None:
        """A micro-batch was about to begin: Spark waits for it."""
        try:
            self.run._on_micro_batch(None, 7)
        except Exception as error:  # noqa: BLE001 - as Spark does
            self.refused.append(error)

    @property
    def committed(self) -> Frontier | None:
        return SinkProgress.open(self.client, COPY).committed


def failing(errors: list[ShardError], answer: Callable[..., Any]) -> Callable[..., Any]:
    """Raises these errors, one for each call, and then answers."""

    def answer_or_fail(*given: Any) -> Any:
        if errors:
            raise errors.pop()
        return answer(*given)

    return answer_or_fail


def test_time_without_changes_is_passed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And none with changes: a micro-batch brings them."""
    idle = Idle(monkeypatch, tmp_path)
    idle.input.step(20)
    idle.follow(waits=1)
    assert idle.committed == Frontier(21)
    idle.input.step(30, (2, "b", 1))
    idle.follow(waits=2)
    assert idle.committed == Frontier(21)


@pytest.mark.parametrize("error", [Determinate("disk full"), Indeterminate("no answer")])
def test_a_store_that_does_not_answer_a_look_ends_no_sink(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: ShardError
) -> None:
    """The next look is as good as a start would be."""
    idle = Idle(monkeypatch, tmp_path)
    idle.input.step(20)
    left = [error]
    monkeypatch.setattr(ShardClient, "readable", failing(left, ShardClient.readable))
    idle.follow(waits=1)
    assert not left
    assert idle.committed == Frontier(11)
    idle.follow(waits=1)
    assert idle.committed == Frontier(21)


def test_micro_batches_that_are_far_apart_do_not_keep_time_from_passing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its lag is its interval and a few seconds at most; it would be called late else."""
    sink = replace(COPY, options={**COPY.options, "interval": "1 hour"})
    idle = Idle(monkeypatch, tmp_path, sink)
    idle.follow(waits=1)
    assert max(idle.waits) <= 10


def test_a_micro_batch_does_not_go_on_behind_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its rows would be given, and not be noted; and of the store's error nothing would be told."""
    idle = Idle(monkeypatch, tmp_path)
    record = SinkProgress.record

    def lost(*given: Any) -> None:
        record(*given)
        raise Indeterminate("no answer")

    monkeypatch.setattr(SinkProgress, "record", lost)
    idle.input.step(20)
    with pytest.raises(Indeterminate, match="no answer"):
        idle.follow(waits=1)
    assert idle.taken == []
    assert len(idle.refused) == 1
    assert isinstance(idle.run._error, Indeterminate)


def test_an_empty_input_in_the_place_of_another_passes_no_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The copy would say that the rows of the old one are there up to times of the new one."""
    idle = Idle(monkeypatch, tmp_path)
    state = idle.client.state("in")
    idle.client.drop("in", despite_holders=[*state.critical, *state.leased])
    Input(idle.client).step(20)
    idle.follow(waits=1)
    assert idle.committed == Frontier(11)


def test_nothing_is_passed_behind_a_micro_batch_that_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its query ends by itself, and Spark's own error is what is told with it."""
    idle = Idle(monkeypatch, tmp_path)
    idle.input.step(20)
    idle.run._error = Indeterminate("no answer")
    idle.follow(waits=1)
    assert idle.committed == Frontier(11)
    assert idle.refused == []


def test_a_target_that_is_gone_is_noticed_before_the_next_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They may come in days, and the accounts would say that the target is there until then."""
    idle = Idle(monkeypatch, tmp_path)
    idle.run._progress.given = Frontier(11)
    monkeypatch.setattr(idle.run._target, "has_taken", lambda _: False)
    idle.input.step(20)
    with pytest.raises(SinkStalled, match="TARGET_WENT_BACK"):
        idle.follow(waits=1)
    assert idle.committed == Frontier(11)


@pytest.mark.parametrize("error", [Determinate("disk full"), Indeterminate("no answer")])
def test_a_target_that_does_not_answer_a_look_ends_no_sink(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: ShardError
) -> None:
    idle = Idle(monkeypatch, tmp_path)
    idle.run._progress.given = Frontier(11)
    left = [error]
    monkeypatch.setattr(idle.run._target, "has_taken", failing(left, lambda _: True))
    idle.input.step(20)
    idle.follow(waits=1)
    assert not left
    assert idle.committed == Frontier(11)
    idle.follow(waits=1)
    assert idle.committed == Frontier(21)
