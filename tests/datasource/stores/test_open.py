"""URLs and storage options, and what opening them costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.stores.open import canonical_url, check_place, open_location, open_objects
from shardline.datasource.stores.options import S3Options, parse_options
from support.tree import ROOT


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("/data/shards", "file:///data/shards"),
        ("/data//shards/./x/", "file:///data/shards/x"),
        ("//data", "file:///data"),
        ("file:///data/shards/", "file:///data/shards"),
        ("file:/data", "file:///data"),
        ("FILE:///data", "file:///data"),
        ("/with space/ü/100%25", "file:///with space/ü/100%25"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3a://bucket", "s3://bucket"),
        ("S3://bucket/x y", "s3://bucket/x y"),
        ("memory://name", "memory://name"),
        ("gs://bucket/a", "gs://bucket/a"),
    ],
)
def test_a_url_has_one_spelling(url: str, canonical: str) -> None:
    """Spellings of one place become one; what is canonical stays as it is."""
    assert canonical_url(url) == canonical
    assert canonical_url(canonical) == canonical


def test_a_relative_path_counts_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is absolute from then on; a colon in it is just a colon."""
    monkeypatch.chdir(tmp_path)

    assert canonical_url("a/b") == f"file://{tmp_path}/a/b"
    assert canonical_url("./12:30") == f"file://{tmp_path}/12:30"
    assert canonical_url("a:b") == f"file://{tmp_path}/a:b"


@pytest.mark.parametrize(
    "url",
    ["", "  ", "/data/../etc", "..", "../x", "file:///a/../b", "file://host/a", "file:a", "s3://",
     "s3:///key", "s3://b/../c", "s3://b//c", "s3://b/./c", "memory://", "memory:///x", "/a\nb",
     "/a\x00", "/\ud800"],
)  # fmt: skip
def test_what_is_no_location_is_refused(url: str) -> None:
    """Empty, `..`, empty steps, control characters, hosts where none belong."""
    with pytest.raises(InvalidUsage, match=r"\[INVALID_LOCATION\]"):
        canonical_url(url)


@pytest.mark.parametrize("url", ["/", "//", "/./", "file:///", "file:/", "FILE:////"])
def test_the_root_of_a_machine_is_no_location(url: str) -> None:
    """To make one there was a loop without an end: above `//` is `//` again."""
    with pytest.raises(InvalidUsage, match=r"\[INVALID_LOCATION\].*folder of its own"):
        open_location(url, {}, clock=SystemClock(), ids=SystemIds())


@pytest.mark.parametrize("url", ["~", "~/", "~/shards"])
def test_a_home_folder_is_not_taken_for_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """It would be made in whatever directory the process was started in, and not found again."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidUsage, match=r"\[INVALID_LOCATION\]"):
        open_location(url, {}, clock=SystemClock(), ids=SystemIds(), if_missing="create")
    assert not list(tmp_path.iterdir())
    assert canonical_url("./~/shards") == f"file://{tmp_path}/~/shards"
    assert canonical_url("a/~") == f"file://{tmp_path}/a/~"


def test_a_credential_in_a_url_is_refused_and_not_repeated() -> None:
    """URLs are shown and stored."""
    with pytest.raises(InvalidUsage, match="carries a credential") as caught:
        canonical_url("s3://AKIA:hunter2@bucket/x")
    assert "hunter2" not in str(caught.value)


def test_options_are_parsed() -> None:
    """Names without regard to case; values by their type."""
    parsed = parse_options(
        {
            "s3.endpoint": "http://h:1",
            "S3.Region": "r",
            "s3.access-key-id": "id",
            "s3.secret-access-key": "hush",
            "s3.session-token": "hush too",
            "s3.path-style": "TRUE",
            "s3.connect-timeout-ms": "12",
            "s3.read-timeout-ms": "34",
            "fsspec.project": "p",
        }
    )

    assert parsed.s3 == S3Options(
        endpoint="http://h:1",
        region="r",
        access_key_id="id",
        secret_access_key="hush",  # noqa: S106 - a test's
        session_token="hush too",  # noqa: S106 - a test's
        path_style=True,
        connect_timeout_ms=12,
        read_timeout_ms=34,
    )
    assert parsed.fsspec == (("project", "p"),)
    assert "hush" not in repr(parsed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"s3.endpont": "x"}, r"\[UNKNOWN_OPTION\].*'s3.endpont'.*did you mean 's3.endpoint'"),
        ({"endpoint": "x"}, r"\[UNKNOWN_OPTION\]"),
        ({"fsspec.": "x"}, r"\[UNKNOWN_OPTION\]"),
        ({"s3.path-style": "yes"}, "true or false"),
        ({"s3.connect-timeout-ms": "-1"}, "whole number above 0"),
        ({"s3.read-timeout-ms": "0"}, "whole number above 0"),
        ({"s3.read-timeout-ms": "1.5"}, "whole number above 0"),
        ({"s3.access-key-id": "x"}, "only one is set"),
        ({"s3.secret-access-key": "hush"}, "only one is set"),
    ],
)
@pytest.mark.parametrize("url", ["memory://x", "s3://b/x"])
def test_a_wrong_option_is_refused_for_every_url(
    url: str, options: dict[str, str], message: str
) -> None:
    """Also where it would have no effect, and without repeating a secret."""
    with pytest.raises(InvalidUsage, match=message) as caught:
        open_objects(url, options, clock=SystemClock(), ids=SystemIds())
    assert "hush" not in str(caught.value)


@pytest.mark.process
@pytest.mark.parametrize("url", ["memory://x", "/no/such/place"])
def test_a_local_location_loads_no_cloud_client(url: str) -> None:
    """s3fs takes half a second to import; Arrow is not needed by a log either."""
    program = (
        "import sys\n"
        "from shardline.datasource.clock import SystemClock, SystemIds\n"
        "from shardline.datasource.stores.open import open_objects\n"
        f"objects = open_objects({url!r}, {{}}, clock=SystemClock(), ids=SystemIds())\n"
        "assert objects.get('a') is None\n"
        "print(sorted({'s3fs', 'fsspec', 'botocore', 'pyarrow', 'msgspec'} & set(sys.modules)))\n"
    )
    path = str(ROOT)
    out = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )

    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nope://x/y", r"\[INVALID_LOCATION\].*fsspec file system for 'nope'"),
        ("local://x", r"\[STORE_NOT_ATOMIC\]"),
        ("~/x", r"\[INVALID_LOCATION\].*'~' is not expanded"),
        ("s3://", r"\[INVALID_LOCATION\].*no empty segment"),
    ],
)
def test_a_url_of_no_location_is_known_without_a_look(url: str, said: str) -> None:
    """Others pass, whether anything is there or not."""
    with pytest.raises(InvalidUsage, match=said):
        check_place(url, {})
    for one in ("memory://x", "s3://no-such-bucket/x", "/no/such/place"):
        check_place(one, {})


def test_an_unknown_scheme_is_refused() -> None:
    """With a hint what would have to be installed."""
    with pytest.raises(InvalidUsage, match=r"\[INVALID_LOCATION\].*fsspec file system for 'nope'"):
        open_location("nope://x/y", {}, clock=SystemClock(), ids=SystemIds())
