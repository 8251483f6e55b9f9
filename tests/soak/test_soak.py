"""A short soak: real processes, killed and compared; and what its bounds say of made-up numbers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate
from soak.__main__ import main
from soak.child import Place
from soak.known import contents_of, difference, known_schema, updates
from soak.measured import Footprint, Sample, broken
from soak.plan import FailedError, Plan, Result
from soak.rounds import soak
from support.faults.fault_proxy import fault_proxy
from support.processes.s3_server import options_for, s3_server


def test_what_is_known_is_what_the_appends_sum_up_to() -> None:
    """The oracle's contents against the updates themselves, added up."""
    for last in (0, 1, 4, 5, 13):
        total: Counter[tuple[object, ...]] = Counter()
        for number in range(1, last + 1):
            table = updates("w", number)
            for *row, diff in zip(*(c.to_pylist() for c in table.columns), strict=True):
                total[tuple(row)] += diff
        assert +total == contents_of("w", last)
        assert not -total


def test_a_difference_names_rows() -> None:
    """What is missing and what is there too often are told apart."""
    wanted = contents_of("w", 5)
    assert difference(wanted, wanted) == ""
    row = next(iter(wanted))
    assert "1 rows missing" in difference(wanted - Counter([row]), wanted)
    assert "1 too many" in difference(wanted + Counter([row]), wanted)


def sample(at_ms: float, **changes: int) -> Sample:
    fine = Footprint(
        live_bytes=1 << 20, stored_bytes=2 << 20, log=100, rollups=2, batches=9, leased=2,
        silent_ms=100, holds=2, writers=3, seqno=int(at_ms),
    )  # fmt: skip
    copy = dataclasses.replace(fine, holds=0, writers=1)
    memory = {kind: changes.pop(kind, 100 << 20) for kind in ("keeper", "writer")}
    source = dataclasses.replace(fine, **changes)
    return Sample(0, at_ms, 0, {"in": source, "arrow": copy, "native": copy}, memory)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        ({"stored_bytes": 21 << 20}, "bytes stored"),
        ({"log": 5000}, "records"),
        ({"rollups": 99}, "rollups"),
        ({"leased": 99}, "leased readers"),
        ({"silent_ms": 99_999}, "ms of silence"),
        ({"holds": 3}, "holds"),
        ({"writers": 4}, "writers"),
        ({"writer": 300 << 20}, "writer: 300 MiB of memory"),
        ({"keeper": 2000 << 20}, "keeper: 2000 MiB of memory"),
    ],
)
def test_a_bound_that_is_broken_is_named(changes: dict[str, int], says: str) -> None:
    """And nothing is said while all hold."""
    samples = [sample(0), sample(1000), sample(2000, **changes)]
    found = broken(samples, writers=3, lease_ms=10_000, rollup_every=64, window_ms=500)
    assert [says in line for line in found] == ([True] if says else [])


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.s3
def test_writers_and_the_keeper_are_killed_over_an_unreliable_store(tmp_path: Path) -> None:
    """Processes on S3, 15 of 100 requests go wrong, SIGKILLs: the acknowledgements are right."""
    told: list[int] = []

    def tell(sample: Sample, result: Result) -> None:
        del result
        told.append(sample.round)

    with s3_server() as server, fault_proxy(server.host, server.port, seed=11) as proxy:
        plan = Plan(
            url=f"s3://{server.new_bucket()}/soak",
            storage={**options_for(proxy.endpoint), "s3.read-timeout-ms": "5000"},
            folder=tmp_path,
            rounds=1,
            seed=1,
            writers=1,
            pause_ms=200,
            masters=(),
            compare_every=1,
            odds=(("keeper", 1.0),),
        )
        # The soak's own looks are not repeated beyond a request's six attempts.
        proxy.storm_requests = 2
        proxy.probability = 0.15
        result = soak(plan, tell)
    assert told == [0, 1]
    assert result.kills["writer"] >= 3
    assert result.kills["keeper"] == 1
    assert result.broken == []
    assert result.appended >= 3
    assert proxy.injected["lost_response"] > 0


@pytest.mark.night
@pytest.mark.slow
def test_writers_and_the_keeper_meet_faults_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command with faults: creates are refused, read-backs damaged, and contents right."""
    status = main(
        ["--rounds", "1", "--compare-every", "1", "--writers", "2", "--no-spark", "--faults", "20",
         "--pause-ms", "10", "--folder", str(tmp_path / "soak"), "--seed", "3"]
    )  # fmt: skip
    said = capsys.readouterr().out
    assert status == 0, said
    assert "every bound held" in said


def test_a_place_with_faults_has_a_store_that_fails(tmp_path: Path) -> None:
    """Of the place itself, and of one that was sent to a process; without, nothing ever fails."""
    url = str(tmp_path / "lake")
    ShardClient.open(url).create("s", known_schema())
    failed = []
    for faults in (0.0, 0.25):
        place = Place(url, {}, str(tmp_path), lease_ms=10_000, rollup_every=64, faults=faults)
        client = msgspec.json.decode(msgspec.json.encode(place), type=Place).client()
        for _ in range(60):
            with contextlib.suppress(Determinate):
                client.location.consensus.head("s")
        failed.append(sum(one.errors for one in client.location.statistics().operations))
    assert failed[0] == 0
    assert failed[1] > 0


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.spark
def test_a_session_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command with Spark: one round, and what it prints."""
    status = main(
        ["--rounds", "1", "--compare-every", "1", "--writers", "1", "--master", "local[2,8]",
         "--folder", str(tmp_path / "soak"), "--seed", "4"]
    )  # fmt: skip
    said = capsys.readouterr().out
    assert status == 0, said
    assert "appends equal the oracle" in said.replace("\n", " ")
    assert "every bound held" in said


@pytest.mark.process
def test_a_lost_append_fails_the_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the soak: contents that miss an append are noticed, with round and seed."""
    from soak import rounds

    def one_less(name: str, last: int) -> object:
        return contents_of(name, last - 1)

    monkeypatch.setattr(rounds, "contents_of", one_less)
    plan = Plan(str(tmp_path / "lake"), {}, tmp_path, rounds=1, seed=9, writers=1, masters=())
    # What the append that is left out took away is missing from the contents, too.
    with pytest.raises(FailedError, match=r"(?s)shard 'in': \d+ rows missing.*seed 9"):
        soak(plan, lambda _sample, _result: None)
