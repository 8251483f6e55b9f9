"""S3 is right where only S3 can be wrong: forks, credentials, buckets."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.stores.location import Committed, VersionedData
from shardline.datasource.stores.open import open_location

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.processes.places import Place
    from support.processes.s3_server import S3Server

pytestmark = pytest.mark.s3

_FORK_MS = 30_000.0


def _in_fork(run: Callable[[], bool]) -> bool:
    """What `run` returns in a forked child; False if it raises or does not end."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if run() else 2
        finally:
            os._exit(status)
    clock = SystemClock()
    gives_up_at = clock.elapsed_ms() + _FORK_MS
    while clock.elapsed_ms() < gives_up_at:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status == 0
        clock.wait(threading.Event(), 10.0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def test_a_location_opened_before_a_fork_works_after_it(s3_place: Place) -> None:
    """In the child and in the parent, while the parent's requests are in flight."""
    location = s3_place.open()
    log = location.consensus
    assert log.compare_and_set("s", None, b"parent") == Committed(1)
    busy = threading.Event()
    reader = threading.Thread(
        target=lambda: [location.blob.get("s/part/none") for _ in iter(busy.is_set, True)]
    )
    reader.start()

    def child(expected: int) -> bool:
        head = log.head("s")
        return (
            head is not None
            and head.seqno == expected
            and log.compare_and_set("s", expected, b"child") == Committed(expected + 1)
        )

    try:
        results = [_in_fork(lambda n=n: child(n)) for n in (1, 2, 3)]  # type: ignore[misc]
    finally:
        busy.set()
        reader.join()
    assert results == [True, True, True]
    assert log.head("s") == VersionedData(4, b"child")
    assert log.compare_and_set("s", 4, b"parent") == Committed(5)


@pytest.mark.parametrize("answer", ["created", "exists", "found", "absent", "listed"])
def test_every_answer_tells_the_time_of_the_server(s3_place: Place, answer: str) -> None:
    """Also a refusal, and that there is nothing: how old an observation is must not be missed."""
    clock = SystemClock()
    s3_place.objects(clock, SystemIds()).put("s/there", b"x")
    objects = s3_place.objects(clock, SystemIds())
    assert objects.latest_ms() == 0
    match answer:
        case "created":
            objects.create("s/new", b"x")
        case "exists":
            objects.create("s/there", b"y")
        case "found" | "absent":
            objects.get("s/there" if answer == "found" else "s/absent")
        case _:
            list(objects.entries("s/"))
    # In full seconds. The server is on this machine, and has its clock.
    assert abs(objects.latest_ms() - clock.now_ms()) < _FORK_MS


def test_a_missing_bucket_is_refused(s3: S3Server) -> None:
    """For readers and for creators: a bucket is never made."""
    for if_missing in ("refuse", "create"):
        with pytest.raises(InvalidUsage, match=r"\[BUCKET_NOT_FOUND\].*create the bucket"):
            open_location(
                "s3://no-such-bucket/x",
                s3.options,
                clock=SystemClock(),
                ids=SystemIds(),
                if_missing=if_missing,
            )


def test_a_bucket_that_cannot_be_named_is_refused(s3: S3Server) -> None:
    """The client's own check of names is the user's mistake, not an outage."""
    with pytest.raises(InvalidUsage, match=r"\[INVALID_LOCATION\]"):
        open_location("s3://No_Such*Bucket/x", s3.options, clock=SystemClock(), ids=SystemIds())


def test_an_endpoint_that_is_no_url_is_refused(s3_place: Place) -> None:
    """Instead of an internal error of the client."""
    options = {**s3_place.options, "s3.endpoint": "not a url"}
    with pytest.raises(InvalidUsage, match=r"\[INVALID_LOCATION\].*s3.endpoint is a URL"):
        open_location(s3_place.url, options, clock=SystemClock(), ids=SystemIds())


def test_without_credentials_the_message_says_where_to_put_them(
    s3_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither options nor environment: name both."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    options = {k: v for k, v in s3_place.options.items() if "key" not in k}

    with pytest.raises(InvalidUsage, match=r"\[NO_CREDENTIALS\].*s3.access-key-id.*AWS_PROFILE"):
        open_location(s3_place.url, options, clock=SystemClock(), ids=SystemIds())


def test_credentials_come_from_the_environment(
    s3_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual AWS variables are enough."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
    options = {k: v for k, v in s3_place.options.items() if "key" not in k}

    location = open_location(
        s3_place.url, options, clock=SystemClock(), ids=SystemIds(), if_missing="create"
    )

    assert location.consensus.compare_and_set("s", None, b"x") == Committed(1)
    assert "not-a-secret" not in repr(location)
