"""Options: parsed once, refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.option_parser import options_from
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard_source.options import check_batch, parse_sink, parse_source
from shardline.datasource.stores.open import canonical_url
from support.models.shards import schema_of

PLACE = {"path": "/lake/orders"}


@pytest.mark.parametrize(
    ("given", "location", "shard"),
    [
        ({"path": "/lake/orders"}, "/lake", "orders"),
        ({"path": "s3://bucket/prefix/orders/"}, "s3://bucket/prefix", "orders"),
        ({"path": "s3://bucket/orders"}, "s3://bucket", "orders"),
        ({"path": "memory://name/orders"}, "memory://name", "orders"),
        ({"path": "file:/lake/a b/ü"}, "file:/lake/a b", "ü"),
        ({"location": "/lake", "shard": "a/b"}, "/lake", "a/b"),
        ({"location": "/lake", "path": "orders"}, "/lake", "orders"),
        ({"path": "/lake", "shard": "orders"}, "/lake", "orders"),
    ],
)
def test_a_place_is_named(given: dict[str, str], location: str, shard: str) -> None:
    """A path names location and shard in one; the options name them apart."""
    options = parse_source(given)

    assert (options.location, options.shard) == (location, shard)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"location": "/lake"},
        {"shard": "orders"},
        {"path": "orders"},
        {"path": "s3://orders"},
        {"path": "/"},
        {"path": "/lake/orders", "location": "/lake", "shard": "orders"},
    ],
)
def test_a_place_that_is_not_named_is_refused(given: dict[str, str]) -> None:
    """What is missing is said, with how to give it."""
    with pytest.raises(InvalidUsage, match=r"option|path"):
        parse_source(given)


@pytest.mark.parametrize(
    "given",
    [
        {"path": "lake/orders"},
        {"Path": "./lake/orders/"},
        {"path": "a:b/orders"},
        {"path": "/lake/orders"},
        {"path": "file:/lake/orders"},
        {"path": "s3://bucket/orders"},
        {"location": "lake", "shard": "a/b"},
        {"LOCATION": "lake", "path": "orders"},
        {"path": "lake", "shard": "orders"},
        {"path": "lake", "shards": "orders,customers"},
        {"path": "orders"},
        {"path": "orders/"},
        {"path": ""},
        {"location": "", "path": "orders"},
        {"path": "../orders"},
        {"path": "file:lake/orders"},
    ],
    ids=str,
)
def test_a_relative_location_counts_from_a_folder(
    given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is looked at, it is the place that a process in that folder finds, or refuses."""
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    wanted = place_of(given)
    monkeypatch.chdir(tmp_path)
    assert place_of(options_from(str(tmp_path / "folder"), given)) == wanted


def test_a_home_folder_is_refused_from_any_folder() -> None:
    """Opening refuses what begins with `~`: with a folder before it, it would be taken."""
    assert options_from("/lake", {"path": "~/orders"}) == {"path": "~/orders"}


def place_of(given: dict[str, str]) -> tuple[str, ...] | str:
    """URL of the location and names of the shards; or the code of the refusal."""
    try:
        options = parse_source(given)
        return canonical_url(options.location), *options.inputs
    except InvalidUsage as error:
        return error.code


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        (str(2**63 - 2), 2**63 - 2),
        ("0" * 5000 + "7", 7),
        ("1795000000000", 1795000000000),
        ("1970-01-02", 86_400_000),
        ("1970-01-01 00:00:01.5", 1500),
        ("1970-01-01T01:00:00+01:00", 0),
    ],
)
def test_times(text: str, ms: int) -> None:
    """Milliseconds, or a date-time; without a zone of its own it is UTC."""
    assert parse_source({**PLACE, "timestampAsOf": text}).timestamp_as_of == ms


@pytest.mark.parametrize(("text", "is_date"), [(" 5 ", False), ("1970-01-02", True)])
def test_a_number_is_no_date_whatever_blanks_are_around_it(text: str, is_date: bool) -> None:
    """A date before the first write is refused with a hint; a number is a time like any other."""
    assert parse_source({**PLACE, "timestampAsOf": text}).as_of_date is is_date


def test_times_in_a_zone() -> None:
    """`timeZone` counts for date-times without a zone of their own."""
    given = {**PLACE, "timestampAsOf": "1970-01-01 09:00:00", "timeZone": "Asia/Tokyo"}

    assert parse_source(given).timestamp_as_of == 0


@pytest.mark.parametrize(
    ("zone", "hours"),
    [
        ("+02:00", 2),
        ("+2", 2),
        ("-0330", -3.5),
        ("-3:5", -3 - 5 / 60),
        ("GMT+02:00", 2),
        ("UTC+1", 1),
        ("UT-01:00:36", -1.01),
        ("Z", 0),
        ("UT", 0),
        ("PST", -8),
        ("EST", -5),
        ("Etc/GMT+3", -3),
    ],
)
def test_any_name_of_a_zone_that_spark_takes(zone: str, hours: float) -> None:
    """As `java.time.ZoneId` reads it, with the short names of Java; the instant is Java's, too."""
    given = {**PLACE, "timestampAsOf": "1970-06-02 00:00:00", "timeZone": zone}
    # No clock was changed in California in the summer of 1970 other than by an hour.
    summer = 1 if zone == "PST" else 0
    expected = (152 * 24 - hours - summer) * 3_600_000
    assert parse_source(given).timestamp_as_of == round(expected)


@pytest.mark.parametrize(
    "more", [{}, {"timestampAsOf": "5"}, {"timestampAsOf": "1970-01-01T01:00:00+01:00"}]
)
@pytest.mark.parametrize("zone", ["SystemV/PST8PDT", "No/Where"])
def test_a_zone_that_nothing_needs_may_be_unknown_here(zone: str, more: dict[str, str]) -> None:
    """The JVM has a list of its own, and any session may have a name out of it."""
    parse_source({**PLACE, **more, "timeZone": zone})
    where = parse_source({**PLACE, "where": "id = 1", "timeZone": zone}).where
    assert where is not None
    where.bind(schema_of())


@pytest.mark.parametrize("zone", ["+19:00", "+1:60", "+123", "+01:2:3", "No/Where", "utc +1"])
def test_an_unknown_zone_is_named_with_what_to_do(zone: str) -> None:
    """Python may lack what the JVM has: the message says so, and what works in both."""
    with pytest.raises(InvalidUsage, match=r"'timeZone'.*hint.*such as \+02:00") as caught:
        parse_source({**PLACE, "timestampAsOf": "2026-01-01", "timeZone": zone})
    assert caught.value.code == "INVALID_OPTION"


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("512k", 512 << 10), ("2M", 2 << 20), ("1GiB", 1 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    """Sizes take units."""
    assert parse_source({**PLACE, "maxbytespertrigger": text}).max_bytes == size


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("7", 7),
        ("7ms", 7),
        ("2s", 2000),
        ("1 min", 60_000),
        ("1d", 86_400_000),
        ("7 days", 7 * 86_400_000),
        ("INTERVAL 1 hour 30 minutes", 5_400_000),
    ],
)
def test_durations(text: str, ms: int) -> None:
    """Durations take units; a bare number is milliseconds."""
    assert parse_source({**PLACE, "PROGRESSINTERVAL": text}).progress_interval_ms == ms


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("timestampAsOf", "-1"),
        ("timestampAsOf", ""),
        ("timestampAsOf", "2026-13-01"),
        ("timestampAsOf", str(2**63 - 1)),
        ("startingTimestamp", "9" * 5000),
        ("endingTimestamp", str(2**64)),
        ("timeZone", "Mars/Olympus"),
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "1q"),
        ("maxFilesPerTrigger", "1.5"),
        ("progressInterval", "1 fortnight"),
        ("progressInterval", "1 hour 30"),
        ("progressInterval", "interval"),
        ("columns", "a,,b"),
        ("snapshot", "maybe"),
        ("readChangeFeed", "1"),
    ],
)
def test_values_that_mean_nothing_are_refused(name: str, text: str) -> None:
    """The message names the option and the value."""
    given = {**PLACE, name: text}
    if name == "timeZone":
        given["timestampAsOf"] = "2026-01-01"

    with pytest.raises(InvalidUsage) as caught:
        parse_source(given)
    assert caught.value.code == "INVALID_OPTION"
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("versionAsOf", "timestampAsOf"),
        ("startingVersion", "startingTimestamp"),
        ("skipChangeCommits", "readChangeFeed"),
    ],
)
def test_options_of_other_formats_are_told_by_their_name_here(name: str, here: str) -> None:
    """A name that only looks alike is no help to who comes from another format."""
    with pytest.raises(InvalidUsage, match=f"UNKNOWN_OPTION.*'{name}'.*{here}") as refused:
        parse_source({**PLACE, name: "1"})
    assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [("timestampAsOff", "timestampAsOf"), ("partBufferByte", "partBufferBytes"), ("keys", "key")],
)
def test_unknown_options_are_refused(name: str, near: str) -> None:
    """With the nearest name that is known."""
    parse = parse_sink if near == "key" else parse_source

    with pytest.raises(InvalidUsage, match=f"did you mean '{near}'"):
        parse({**PLACE, name: "1"})


def test_settings_are_options() -> None:
    """Every setting can be given in camel case, in any case."""
    given = {**PLACE, "leasems": "1000", "validate": "true", "partBufferBytes": "1_000"}

    assert parse_sink(given).settings == ShardSettings(
        lease_ms=1000, validate=True, part_buffer_bytes=1000
    )


def test_a_transaction_needs_both_of_its_options() -> None:
    """A writer without a number, or a number without a writer, is refused."""
    with pytest.raises(InvalidUsage, match="go together"):
        parse_sink({**PLACE, "txnAppId": "etl"})
    assert parse_sink({**PLACE, "txnAppId": "etl", "txnVersion": "7"}).txn_version == 7
    with pytest.raises(InvalidUsage, match=r"'1\.0'.*a whole number"):
        parse_sink({**PLACE, "txnAppId": "etl", "txnVersion": "1.0"})
    with pytest.raises(InvalidUsage, match=r"'-1'.*at least 0"):
        parse_sink({**PLACE, "txnAppId": "etl", "txnVersion": "-1"})


def test_sparks_own_options_are_let_through() -> None:
    """What Spark passes along by itself is not an unknown option."""
    assert parse_sink({**PLACE, "checkpointLocation": "/c", "queryName": "q"}).shard == "orders"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingTimestamp": "5", "endingTimestamp": "5"}, "is not after 'startingTimestamp'"),
        ({"timestampAsOf": "5", "endingTimestamp": "5"}, "is not after 'timestampAsOf'"),
        ({"timestampAsOf": "5", "startingTimestamp": "5"}, "exclude each other"),
        ({"changeFormat": "cdf", "readChangeFeed": "false"}, "exclude each other"),
        ({"appendOnly": "true", "readChangeFeed": "true"}, "exclude each other"),
        ({"appendOnly": "true", "changeFormat": "cdf"}, "exclude each other"),
        ({"changeFormat": "csv"}, "cannot be 'csv'"),
        ({"onMissingPart": "skip"}, "one of fail, freeze"),
        ({"failOnDataLoss": "false"}, "unknown option"),
        ({"shards": "a,b"}, "goes with the location alone"),
    ],
)
def test_options_that_contradict_are_refused(given: dict[str, str], said: str) -> None:
    """Each error names the options and says why they cannot both be meant."""
    place = {"location": "/lake", "shard": "in"}

    with pytest.raises(InvalidUsage, match=said):
        parse_source({**place, **given})


@pytest.mark.parametrize("given", [{"startingTimestamp": "5"}, {"endingTimestamp": "5"}])
def test_times_of_changes_mean_nothing_to_contents(given: dict[str, str]) -> None:
    """A batch read that passed them over would return rows that nobody has asked for."""
    place = {"location": "/lake", "shard": "in"}
    with pytest.raises(InvalidUsage, match=f"'{next(iter(given))}' means nothing.*readChangeFeed"):
        check_batch(parse_source({**place, **given}))
    check_batch(parse_source({**place, **given, "readChangeFeed": "true"}))


@pytest.mark.parametrize("text", ["7", " 300000 "])
def test_history_is_kept_for_a_time_with_a_unit(text: str) -> None:
    """Who writes 7 means days: as milliseconds they would be let go."""
    with pytest.raises(InvalidUsage, match=r"retainHistory.*a duration with its unit"):
        parse_sink({**PLACE, "retainHistory": text})
    for fine, ms in (("0", 0), ("7 days", 7 * 86_400_000), ("5ms", 5)):
        assert parse_sink({**PLACE, "retainHistory": fine}).retain_ms == ms


def test_several_shards_are_named_once_below_one_location() -> None:
    """The path, or option `location`, is the location; a shard named twice is refused."""
    options = parse_source({"path": "/lake/", "shards": "a, b"})

    assert (options.location, options.inputs) == ("/lake", ("a", "b"))
    with pytest.raises(InvalidUsage, match="names a shard twice"):
        parse_source({"path": "/lake", "shards": "a,b,a"})


@pytest.mark.parametrize("parse", [parse_source, parse_sink])
@pytest.mark.parametrize(
    ("option", "text", "hint"),
    [
        ("leaseMs", "x", "whole number"),
        ("leaseMs", "0", "at least 1"),
        ("writerLeaseMs", "-1", "at least 1"),
        ("compactFactor", "1", "at least 2"),
        ("validate", "maybe", "true or false"),
    ],
)
def test_a_setting_is_refused_by_the_name_of_its_option(
    parse: Callable[[dict[str, str]], object], option: str, text: str, hint: str
) -> None:
    """With its value as it was written, and the least one that works."""
    with pytest.raises(InvalidUsage, match=f"option '{option}' cannot be '{text}'.*{hint}"):
        parse({**PLACE, option.lower(): text})
