"""Histories of real clients are linearizable: threads and processes, with and without faults."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.stores.faulty import Faulty
from shardline.datasource.stores.memory import MemoryObjects, drop_store
from shardline.datasource.stores.open import compose_location
from support.faults.fault_proxy import fault_proxy
from support.models.linearizability import UNKNOWN, Call, explains, problems, resolved
from support.models.shard_history import MARKS, SETTINGS, held, record
from support.processes.s3_server import S3Server, s3_server
from support.tree import TESTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.models.linearizability import Held

SHARD = "history"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def name() -> Iterator[str]:
    made = f"history-{SystemIds().token().hex()}"
    yield made
    drop_store(made)


# --- recorded histories --------------------------------------------------------------------------


def in_threads(clients: list[Callable[[], ShardClient]], count: int) -> list[Call]:
    """What several clients recorded at the same time, a thread each."""
    calls: list[Call] = []
    failures: list[BaseException] = []
    ready = threading.Barrier(len(clients))

    def run(number: int, opened: Callable[[], ShardClient]) -> None:
        try:
            client = opened()
            ready.wait()
            calls.extend(record(client, SHARD, f"client-{number}", count))
        except BaseException as error:  # noqa: BLE001 - the test reports it
            failures.append(error)
            ready.abort()

    threads = [
        threading.Thread(target=run, args=given, daemon=True) for given in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, failures
    return calls


def in_processes(url: str, options: dict[str, str], many: int, count: int) -> list[Call]:
    """What several processes recorded at the same time."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "support.models.shard_history",
                json.dumps(
                    {
                        "url": url,
                        "options": options,
                        "shard": SHARD,
                        "client": f"process-{number}",
                        "count": count,
                    }
                ),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        for number in range(many)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    calls = []
    for process in processes:
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        calls += [
            Call(**{**line, "marks": tuple(line["marks"])})
            for line in map(json.loads, said.splitlines())
        ]
    return calls


def check(calls: list[Call], final: list[Held], appends: int) -> None:
    """The history is linearizable, and not empty; its beginning also by search."""
    assert problems(calls, final) == []
    assert len(final) >= appends
    assert explains(beginning(resolved(calls, final), 60))


def beginning(calls: list[Call], count: int) -> list[Call]:
    """What is known of a history when its first `count` calls have begun."""
    order = sorted(calls, key=lambda call: call.began_ms)
    until = order[min(count, len(order) - 1)].began_ms
    known = [call for call in order if call.ended_ms <= until]
    under_way = [call for call in order if call.began_ms <= until < call.ended_ms]
    return known + [replace(call, ended_ms=UNKNOWN) for call in under_way if call.appends]


def opened(url: str, options: dict[str, str] | None = None) -> ShardClient:
    client = ShardClient.open(url, options, settings=SETTINGS)
    client.create(SHARD, MARKS)
    return client


@pytest.mark.slow
def test_threads_in_memory(name: str) -> None:
    """Clients of their own, and two that share one: their commits go together."""
    shared = opened(f"memory://{name}")
    calls = in_threads(
        [lambda: shared, lambda: shared, *[lambda: opened(f"memory://{name}")] * 3], 80
    )
    check(calls, held(shared, SHARD), 100)


@pytest.mark.parametrize("seed", range(4))
def test_threads_with_faults(name: str, seed: int) -> None:
    """Errors before and after the effect, late effects, conflicts with oneself."""
    clock, ids = SystemClock(), SystemIds()
    opened(f"memory://{name}")

    def unreliable() -> ShardClient:
        bare = MemoryObjects(name, clock)
        store = Faulty(bare, clock=clock, ids=ids, probability=0.0, slow_ms=5.0)
        location = compose_location(store, clock=clock, ids=ids)
        store.probability = 0.05 + 0.02 * seed
        return ShardClient(location, SETTINGS, clock, ids)

    calls = in_threads([unreliable] * 3, 25)
    check(calls, held(opened(f"memory://{name}"), SHARD), 20)


@pytest.mark.process
def test_processes_on_disk(tmp_path: Path) -> None:
    """Processes that share nothing but a folder."""
    url = f"file://{tmp_path}/lake"
    client = opened(url)
    check(in_processes(url, {}, 3, 50), held(client, SHARD), 40)


@pytest.mark.s3
def test_processes_on_s3(s3: S3Server) -> None:
    """Processes that share nothing but a bucket."""
    url = f"s3://{s3.new_bucket()}/lake"
    client = opened(url, s3.options)
    check(in_processes(url, s3.options, 2, 20), held(client, SHARD), 10)


@pytest.mark.s3
def test_threads_on_s3_behind_faults(s3: S3Server) -> None:
    """Responses are lost, requests repeated and refused on the way to the server."""
    url = f"s3://{s3.new_bucket()}/lake"
    client = opened(url, s3.options)
    with fault_proxy(s3.host, s3.port) as proxy:
        options = {**s3.options, "s3.endpoint": proxy.endpoint}
        proxy.probability = 0.1
        calls = in_threads([lambda: opened(url, options)] * 3, 15)
        assert sum(proxy.injected.values()) > 0
    check(calls, held(client, SHARD), 10)


# --- the checkers themselves ---------------------------------------------------------------------


def cas(mark: str, at: int, began: float, ended: float) -> Call:
    return Call("cas", began, ended, mark, at, at + 10)


def asked(upper: int, began: float, ended: float) -> Call:
    return Call("upper", began, ended, upper=upper)


def read(upper: int, marks: str, began: float, ended: float) -> Call:
    return Call("snapshot", began, ended, upper=upper, marks=tuple(marks))


AB: list[Held] = [("a", 0, 10), ("b", 10, 20)]

GOOD: dict[str, tuple[list[Call], list[Held]]] = {
    "one after the other": ([cas("a", 0, 0, 1), cas("b", 10, 2, 3), asked(20, 4, 5)], AB),
    "side by side": ([cas("b", 10, 0, 9), cas("a", 0, 0, 9), asked(10, 0, 9)], AB),
    "unknown and done, late": (
        [cas("a", 0, 0, 1), cas("b", 10, 2, UNKNOWN), asked(10, 5, 6), asked(20, 7, 8)],
        AB,
    ),
    "unknown and not done": ([cas("a", 0, 0, 1), cas("x", 10, 2, UNKNOWN)], AB[:1]),
    "refused": (
        [cas("a", 0, 0, 1), replace(cas("x", 0, 2, 3), done=False, current=10)],
        AB[:1],
    ),
    "read in the middle": ([cas("a", 0, 0, 1), read(10, "a", 2, 5), cas("b", 10, 3, 4)], AB),
}

BAD: dict[str, tuple[list[Call], list[Held]]] = {
    "a stale read": ([cas("a", 0, 0, 1), cas("b", 10, 2, 3), asked(10, 4, 5)], AB),
    "a stale read after another read": (
        [cas("a", 0, 0, 1), cas("b", 10, 2, UNKNOWN), asked(20, 4, 5), asked(10, 6, 7)],
        AB,
    ),
    "a lost append": ([cas("a", 0, 0, 1), cas("b", 10, 2, 3), read(20, "a", 4, 5)], AB),
    "an append that is not there": ([cas("a", 0, 0, 1), cas("b", 0, 2, 3)], AB[:1]),
    "a doubled append": (
        [cas("a", 0, 0, 1), read(20, "aa", 2, 3)],
        [("a", 0, 10), ("a", 10, 20)],
    ),
    "two at one place": ([cas("a", 0, 0, 5), cas("b", 0, 1, 4)], [("a", 0, 10), ("b", 0, 10)]),
    "acknowledged in another order": ([cas("b", 10, 0, 1), cas("a", 0, 2, 3)], AB),
    "a refused append that is there": (
        [
            cas("a", 0, 0, 1),
            replace(cas("b", 0, 2, 3), done=False, current=10),
            read(20, "ab", 4, 5),
        ],
        AB,
    ),
    "refused for no reason": ([replace(cas("a", 0, 0, 1), done=False, current=0)], []),
    "a read from the future": ([asked(10, 0, 1), cas("a", 0, 2, 3)], AB[:1]),
    "a snapshot that misses one": (
        [cas("a", 0, 0, 1), cas("b", 10, 2, 3), read(20, "b", 4, 5)],
        AB,
    ),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_is_linearizable_passes(case: str) -> None:
    """Both checkers accept what some order explains."""
    calls, final = GOOD[case]
    assert problems(calls, final) == []
    assert explains(resolved(calls, final))


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_linearizable_is_found(case: str) -> None:
    """Both checkers refuse what no order explains."""
    calls, final = BAD[case]
    assert problems(calls, final) != []
    assert not explains(calls)


def test_both_checkers_say_the_same_of_small_histories() -> None:
    """Every history of three calls of a few kinds that overlap: accepted by both, or neither."""
    spans = [(0.0, 1.0), (2.0, 3.0), (0.5, 2.5)]
    kinds: list[Callable[[float, float], Call]] = [
        lambda b, e: cas("a", 0, b, e),
        lambda b, e: cas("b", 10, b, e),
        lambda b, e: asked(0, b, e),
        lambda b, e: asked(10, b, e),
        lambda b, e: asked(20, b, e),
        lambda b, e: read(10, "a", b, e),
        lambda b, e: read(20, "ab", b, e),
    ]
    compared: dict[bool, int] = {True: 0, False: 0}
    for some in itertools.permutations(range(len(kinds)), 3):
        calls = [kinds[kind](*span) for kind, span in zip(some, spans, strict=True)]
        marks = {call.mark for call in calls if call.kind == "cas"}
        final = [entry for entry in AB if entry[0] in marks]
        accepted = explains(calls)
        if marks == {"b"}:
            assert not accepted  # nobody has made the upper that it builds upon
            continue
        assert accepted == (problems(calls, final) == []), calls
        compared[accepted] += 1
    assert min(compared.values()) > 10
