"""Lists the formats of sources and sinks with their spelling, options and packages.

    canonical_format("PARQUET")                         parquet
    unknown_options("csv", {"haeder": "true"}, "source") [("haeder", "did you mean 'header'?")]
    missing_option("xml", {}, "sink")                   ("rowTag", "the name of the element …")
    invalid_values("csv", {"mode": "IGNORE"})           [("mode", "one of PERMISSIVE, …")]
    package_of("kafka")                                  a class of it, and where it is

Spark ignores an option that it does not know: a `haeder` of a CSV file would be a row of data for
ever. So options are checked here, when an object is created, without a JVM.

What a caller relies on:
    A format that is not listed is left to its package: its spelling and its options are not
    checked, and neither is an option with a dot in its name, which is of a file system or a codec.

Invariants:
    Names are compared without case, as Spark does.
    Every option that Spark has for a format is here: a test asks Spark.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

from shardline.app.storage.bad_rows import DECODED_FORMATS
from shardline.datasource.errors import nearest_name

__all__ = [
    "ADDED",
    "EXACT_BLANKS",
    "EXACT_TIMES",
    "FILES",
    "KNOWN_FORMATS",
    "ONLY_READ",
    "OWN_SINKS",
    "READ_FILES",
    "TIMES_AS_TEXTS",
    "UPPER",
    "Use",
    "canonical_format",
    "invalid_values",
    "missing_option",
    "package_of",
    "path_option",
    "unknown_options",
]

Use: TypeAlias = Literal["source", "sink"]

FILES: Final = ("avro", "csv", "json", "orc", "parquet", "text", "xml")
"""Formats that are files in a folder."""

READ_FILES: Final = frozenset({*FILES, "binaryfile"})
"""Formats, in lower case, that Spark reads from files: it lists them, and has the file and the
block of each of their rows."""

OWN_SINKS: Final[Mapping[str, tuple[str, ...]]] = {
    "console": ("numRows", "truncate"),
    "foreachBatch": ("function",),
    "memory": (),
}
"""Sinks that this program implements itself, with their options."""

KNOWN_FORMATS: Final = (
    "auction", "binaryFile", "counter", "delta", "iceberg", "jdbc", "kafka", "nexmark", "rate",
    "rate-micro-batch", "shard", "socket", *FILES, *OWN_SINKS,
)  # fmt: skip
"""Formats that are suggested for one that is misspelt."""

ONLY_READ: Final = frozenset(
    {"auction", "binaryFile", "counter", "nexmark", "rate", "rate-micro-batch", "socket"}
)
"""Formats of sources alone."""

UPPER: Final = "_upper"
"""Column that Spark makes of the sub-folders of a sink of files, `_upper=<number>`: one for each
micro-batch."""

ADDED: Final = "_shardline_"
"""Beginning of the names of columns that a source's rows get while they are read, in lower case."""

_PACKAGES: Final = {
    "avro": (
        "org.apache.spark.sql.v2.avro.AvroDataSourceV2",
        "org.apache.spark:spark-avro_2.13:{spark}",
    ),
    "delta": (
        "org.apache.spark.sql.delta.sources.DeltaDataSource",
        "io.delta:delta-spark_2.13:VERSION",
    ),
    "iceberg": (
        "org.apache.iceberg.spark.source.IcebergSource",
        "org.apache.iceberg:iceberg-spark-runtime-…:VERSION, that of this version of Spark",
    ),
    "kafka": (
        "org.apache.spark.sql.kafka010.KafkaSourceProvider",
        "org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",
    ),
}
"""Formats that are not in Spark: a class to look for on the class path, and its package."""

_TEXTS: Final = (
    "charset", "columnNameOfCorruptRecord", "compression", "dateFormat",
    "enableDateTimeParsingFallback", "encoding", "inferSchema", "lineSep", "locale", "mode",
    "multiLine", "samplingRatio", "singleVariantColumn", "timeFormat", "timeZone",
    "timestampFormat", "timestampNTZFormat",
)  # fmt: skip

_OF_FORMAT: Final[Mapping[str, tuple[str, ...]]] = {
    "avro": (
        "avroSchema", "avroSchemaUrl", "compression", "datetimeRebaseMode",
        "enableStableIdentifiersForUnionType", "ignoreExtension", "mode",
        "positionalFieldMatching", "recordName", "recordNamespace", "recursiveFieldMaxDepth",
        "stableIdentifierPrefixForUnionType",
    ),
    "csv": (
        *_TEXTS, "charToEscapeQuoteEscaping", "codec", "columnPruning", "comment", "delimiter",
        "emptyValue", "enforceSchema", "escape", "escapeQuotes", "extension", "header",
        "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "inputBufferSize",
        "maxCharsPerColumn", "maxColumns", "nanValue", "negativeInf", "nullValue", "positiveInf",
        "preferDate", "quote", "quoteAll", "sep", "unescapedQuoteHandling",
    ),
    "json": (
        *_TEXTS, "allowBackslashEscapingAnyCharacter", "allowComments", "allowNonNumericNumbers",
        "allowNumericLeadingZeros", "allowSingleQuotes", "allowUnquotedControlChars",
        "allowUnquotedFieldNames", "dropFieldIfAllNull", "explodeEmbeddedArray",
        "ignoreNullFields", "inferTimestamp", "prefersDecimal", "pretty", "primitivesAsString",
        "sortKeys", "useUnsafeRow", "writeNonAsciiCharacterAsCodePoint",
    ),
    "orc": ("compression", "mergeSchema"),
    "parquet": ("compression", "datetimeRebaseMode", "int96RebaseMode", "mergeSchema"),
    "text": ("compression", "encoding", "lineSep", "wholetext"),
    "xml": (
        *_TEXTS, "arrayElementName", "attributePrefix", "declaration", "excludeAttribute",
        "ignoreNamespace", "ignoreSurroundingSpaces", "indent", "nullValue", "preferDate",
        "prefersDecimal", "rootTag", "rowTag", "rowValidationXSDPath", "useLegacyXMLParser",
        "validateName", "valueTag", "wildcardColName",
    ),
}  # fmt: skip
"""Options of files of a format, read or written."""

EXACT_TIMES: Final[Mapping[str, str]] = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options by which texts keep all of a timestamp. Spark writes milliseconds without them: two keys
would be one, and a row that is read again another row. XXXXX has the seconds of old offsets."""

EXACT_BLANKS: Final[Mapping[str, str]] = {
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}
"""Options by which `csv` keeps the blanks at the ends of texts. Spark writes it without them."""

TIMES_AS_TEXTS: Final = ("csv", "json", "xml")
"""Formats of files in which timestamps are texts, as `EXACT_TIMES` has them."""

_READING_FILES: Final = (
    "basePath", "cleanSource", "discardCachedInputRatio", "fileNameOnly", "ignoreCorruptFiles",
    "ignoreInvalidPartitionPaths", "ignoreMissingFiles", "ignoredPathSegmentRegex", "latestFirst",
    "maxBytesPerTrigger", "maxCachedFiles", "maxFileAge", "maxFilesPerTrigger", "modifiedAfter",
    "modifiedBefore", "path", "pathGlobFilter", "recursiveFileLookup", "sourceArchiveDir",
    "timeZone",
)  # fmt: skip

_WRITE_FILES: Final = ("maxRecordsPerFile", "partitionBy", "path")

_OTHER_SOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "kafka": (
        "assign", "endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp", "failOnDataLoss",
        "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix", "includeHeaders",
        "kafkaConsumer.pollTimeoutMs", "maxOffsetsPerTrigger", "maxRecordsPerPartition",
        "maxTriggerDelay", "minOffsetsPerTrigger", "minPartitions", "startingOffsets",
        "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "startingTimestamp",
        "subscribe", "subscribePattern",
    ),
    "rate": ("numPartitions", "rampUpTime", "rowsPerSecond"),
    "rate-micro-batch": (
        "advanceMillisPerBatch", "numPartitions", "rowsPerBatch", "startTimestamp",
    ),
    "socket": ("host", "includeTimestamp", "port"),
}  # fmt: skip

_OF_ENVELOPES: Final = ("deleteColumn", "orderingColumn")
"""Options of every source."""

_OF_DECODED: Final = ("onBadRow",)
"""Options of sources whose rows are decoded one by one."""

_OF_SINKS: Final = ("interval",)
"""Options of every sink."""

_WRITING_KAFKA: Final = ("includeHeaders", "topic")

_BROKERS: Final = (("kafka.bootstrap.servers",), "the brokers: 'host:9092,…'")
_ROW: Final = (("rowTag",), "the name of the element that is a row")
_FOLDER: Final = (("path",), "the folder that its files come into")

_NEEDED: Final[Mapping[Use, Mapping[str, tuple[tuple[tuple[str, ...], str], ...]]]] = {
    "source": {
        **dict.fromkeys((*FILES, "binaryFile"), (_FOLDER,)),
        "xml": (_FOLDER, _ROW),
        "socket": ((("host",), "the machine to connect to"), (("port",), "the port there")),
        "kafka": (
            _BROKERS,
            (("subscribe", "subscribePattern", "assign"), "the topics: subscribe 'one,two'"),
        ),
    },
    "sink": {
        "delta": ((("path",), "the folder of the table"),),
        "iceberg": ((("path",), "the table, by its name in a catalog or its folder"),),
        "jdbc": (
            (("url",), "the database: 'jdbc:…'"),
            (("dbtable",), "the table that rows are added to"),
        ),
        "foreachBatch": ((("function",), "the name that the function was registered with"),),
        "kafka": (_BROKERS, (("topic",), "the topic that its messages go to")),
        "xml": (_ROW,),
    },
}
"""Options of which a format needs one each, with a hint."""

_REBASE: Final = ("EXCEPTION", "CORRECTED", "LEGACY")

_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "mode": ("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
    "wholetext": ("true", "false"),
    "datetimerebasemode": _REBASE,
    "int96rebasemode": _REBASE,
}
"""Values of options that Spark looks at when rows are read, or replaces by another with a warning:
its parser does not refuse them."""

_COUNT: Final = (re.compile(r"0*[1-9]\d*"), "a whole number of at least 1")
_MS: Final = (re.compile(r"\d+"), "milliseconds, a whole number")
_FLAG: Final = (re.compile(r"true|false", re.IGNORECASE), "true or false")
_JSON: Final = re.compile(r"\{.*\}", re.DOTALL)

_OF_KAFKA: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    **dict.fromkeys(
        ("maxoffsetspertrigger", "minoffsetspertrigger", "minpartitions", "maxrecordsperpartition"),
        _COUNT,
    ),
    **dict.fromkeys(
        (
            "fetchoffset.numretries", "fetchoffset.retryintervalms", "kafkaconsumer.polltimeoutms",
            "startingtimestamp",
        ),
        _MS,
    ),
    **dict.fromkeys(("failondataloss", "includeheaders"), _FLAG),
    "kafka.bootstrap.servers": (
        re.compile(r"\s*[^,\s]+:\d+\s*(,\s*[^,\s]+:\d+\s*)*"), "the brokers: 'host:9092,…'"
    ),
    "subscribe": (
        re.compile(r"[^,]*[^,\s][^,]*(,[^,]*[^,\s][^,]*)*"), "names of topics: 'one,two'"
    ),
    "assign": (_JSON, """partitions by topic, in JSON: '{"topic": [0, 1]}'"""),
    "startingoffsets": (
        re.compile(rf"(?i:earliest|latest)|{_JSON.pattern}", re.DOTALL),
        """earliest, latest, or offsets in JSON: '{"topic": {"0": 23, "1": -2}}'""",
    ),
    "startingoffsetsbytimestamp": (
        _JSON, """milliseconds by partition, in JSON: '{"topic": {"0": 1700000000000}}'"""
    ),
    "startingoffsetsbytimestampstrategy": (
        re.compile(r"error|latest", re.IGNORECASE), "error or latest"
    ),
    "topic": (
        re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}"),
        "one name, of letters, digits, dots, _ and -, of 249 at most",
    ),
}  # fmt: skip
"""Options of Kafka whose values Spark's source looks at only when its query starts, in lower case:
the form of a value, and a hint. More than the form only a broker knows."""

_LISTED: Final = 12
"""A hint lists no more names than this."""

_SPELT: Final = {name.lower(): name for name in KNOWN_FORMATS}


def canonical_format(name: str) -> str:
    """The canonical spelling of a format; `name` itself if it is not listed."""
    return _SPELT.get(name.lower(), name)


def package_of(name: str) -> tuple[str, str] | None:
    """The class and the package of a format that is not in Spark; None for all others."""
    found = _PACKAGES.get(canonical_format(name))
    if found is None:
        return None
    # Without a version Spark takes none; those that come with Spark have its own.
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        version = "VERSION"
    return found[0], found[1].format(spark=version)


def unknown_options(name: str, options: Iterable[str], use: Use) -> list[tuple[str, str]]:
    """Options that a format does not have, each with a hint; none if the format is not listed.

    Args:
        name: The format.
        options: Names of options, as a statement has them.
        use: Whether they are a source's or a sink's.
    """
    known = _known(canonical_format(name), use)
    if known is None:
        return []
    folded = {option.lower() for option in known}
    wrong = [o for o in options if "." not in o and o.lower() not in folded]
    return [(option, _hint(option, known)) for option in wrong]


def missing_option(name: str, options: Iterable[str], use: Use) -> tuple[str, str] | None:
    """A required option that is missing, with a hint; None if nothing is missing."""
    given = {option.lower() for option in options}
    for alternatives, hint in _NEEDED[use].get(canonical_format(name), ()):
        if given.isdisjoint(option.lower() for option in alternatives):
            return alternatives[0], hint
    return None


def path_option(options: Mapping[str, str]) -> str | None:
    """The path of a source or sink of files, in whatever case its name is; None if it has none."""
    return next((value for name, value in options.items() if name.lower() == "path"), None)


def invalid_values(name: str, options: Mapping[str, str]) -> list[tuple[str, str]]:
    """Options with a value that Spark's own parser would let pass, each with a hint."""
    if canonical_format(name) == "kafka":
        return [
            (option, form[1])
            for option, value in options.items()
            if (form := _OF_KAFKA.get(option.lower())) and not form[0].fullmatch(value.strip())
        ]
    if canonical_format(name) not in FILES:
        return []
    empty = [
        (option, "the text between two columns: one character or more")
        for option, value in options.items()
        if option.lower() in {"sep", "delimiter"} and not value
    ]
    return empty + [
        (option, f"one of {', '.join(allowed)}")
        for option, value in options.items()
        if (allowed := _VALUES.get(option.lower()))
        and value.strip().lower() not in {one.lower() for one in allowed}
    ]


def _hint(option: str, known: tuple[str, ...]) -> str:
    near = nearest_name(option, known)
    if near is not None:
        return f"did you mean '{near}'?"
    if len(known) > _LISTED:
        return "nothing of the format has a name like it: see Spark's page on the format"
    return f"known names: {', '.join(sorted(known))}"


def _known(name: str, use: Use) -> tuple[str, ...] | None:
    """All options of a format; None if the format is not listed."""
    own = _OF_FORMAT.get(name)
    if use == "sink":
        if name in OWN_SINKS:
            return (*OWN_SINKS[name], *_OF_SINKS)
        if name == "kafka":
            return (*_WRITING_KAFKA, *_OF_SINKS)
        return None if own is None else (*own, *_WRITE_FILES, *_OF_SINKS)
    if own is not None:
        decoded = _OF_DECODED if name in DECODED_FORMATS else ()
        return (*own, *_READING_FILES, *_OF_ENVELOPES, *decoded)
    other = _OTHER_SOURCES.get(name)
    return None if other is None else (*other, *_OF_ENVELOPES)
