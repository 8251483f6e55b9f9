"""Shards as frames of Spark, and the means to run many small queries over them.

The public face of the room `spark_native`; every internal class of Spark that the package depends
on stands behind it. What is here needs a session with a JVM (not Spark Connect), and the exact
version of Spark that this project names.

    snapshot, changes, every_update, updates_in_driver    contents and changes of a range
    net_changes, can_consolidate, repeat_rows             each distinct row once
    micro_batch, micro_batch_sources    the rows of a micro-batch of `format("shard")`
    micro_batch_files                   the files of a micro-batch: which are empty, or missing
    columns_since_load           the columns that these rows are without
    interval_of, stage_interval, collect_interval, small_target    a frame as an append
    save, stage_by_tasks         a frame as one shard's contents; as parts of a transaction
    DriverStream, open_driver_stream    a stream of frontiers, without rows
    KeptJob, rows_given_later, KeptRuns    a plan that is planned once, run again over other rows
    empty_frame, frame_of, clone_of, local_relation, has_class    calls to the JVM
    kind_of, children_of, read_sequence, …    questions about Spark's plans and expressions
    analyse_query, make_table    a query over frames by name; a table of a session's catalog
    settings_of                  what is set in a session
    make_active, as_active       the session whose settings Spark takes in a thread
    struct_of, quoted            Spark's type of a schema; a name in SQL
    status_reader                the status of a streaming query, in one call
    show_statistics, StatisticsSection, …    our sections on pages of Spark's UI
    sync_path, sync_tree, sync_names_above    what Spark has written to a disk, made durable
    ROWS_MAX, BYTES_MAX          results up to which are staged by the driver
"""

from shardline.datasource.spark_native.catalog_entries import analyse_query, make_table
from shardline.datasource.spark_native.catalyst_nodes import (
    children_of,
    is_plan,
    is_whole,
    kind_of,
    number_of,
    numbers_of,
    numbers_read,
    operator_kinds,
    read_sequence,
    scala_sequence,
    type_of,
)
from shardline.datasource.spark_native.consolidate import can_consolidate, net_changes, repeat_rows
from shardline.datasource.spark_native.driver_stream import DriverStream, open_driver_stream
from shardline.datasource.spark_native.jvm import (
    as_active,
    clone_of,
    empty_frame,
    frame_of,
    has_class,
    local_relation,
    make_active,
    settings_of,
)
from shardline.datasource.spark_native.kept_job import (
    KeptJob,
    KeptRuns,
    KindOfRun,
    NotKept,
    rows_given_later,
)
from shardline.datasource.spark_native.local_sync import sync_names_above, sync_path, sync_tree
from shardline.datasource.spark_native.micro_batch import columns_since_load, micro_batch
from shardline.datasource.spark_native.plan_identity import plan_identity
from shardline.datasource.spark_native.query_statistics import (
    SeenQuery,
    StatisticsSection,
    StatisticsTable,
    metrics_table,
    show_statistics,
    source_sections,
)
from shardline.datasource.spark_native.query_status import ReadStatus, status_reader
from shardline.datasource.spark_native.read import (
    changes,
    every_update,
    snapshot,
    times_of_changes,
    updates_in_driver,
)
from shardline.datasource.spark_native.rule_loader import is_checked
from shardline.datasource.spark_native.running_batch import (
    MicroBatchFiles,
    micro_batch_files,
    micro_batch_sources,
)
from shardline.datasource.spark_native.save import save
from shardline.datasource.spark_native.small_results import (
    BYTES_MAX,
    ROWS_MAX,
    collect_few,
    has_same_arrow_types,
    to_arrow,
)
from shardline.datasource.spark_native.time_interval import (
    Interval,
    SmallTarget,
    StagedInterval,
    collect_interval,
    interval_of,
    interval_of_offsets,
    small_target,
    stage_interval,
)
from shardline.datasource.spark_native.transaction import stage_by_tasks
from shardline.datasource.spark_native.types import quoted, struct_of

__all__ = [
    "BYTES_MAX",
    "ROWS_MAX",
    "DriverStream",
    "Interval",
    "KeptJob",
    "KeptRuns",
    "KindOfRun",
    "MicroBatchFiles",
    "NotKept",
    "ReadStatus",
    "SeenQuery",
    "SmallTarget",
    "StagedInterval",
    "StatisticsSection",
    "StatisticsTable",
    "analyse_query",
    "as_active",
    "can_consolidate",
    "changes",
    "children_of",
    "clone_of",
    "collect_few",
    "collect_interval",
    "columns_since_load",
    "empty_frame",
    "every_update",
    "frame_of",
    "has_class",
    "has_same_arrow_types",
    "interval_of",
    "interval_of_offsets",
    "is_checked",
    "is_plan",
    "is_whole",
    "kind_of",
    "local_relation",
    "make_active",
    "make_table",
    "metrics_table",
    "micro_batch",
    "micro_batch_files",
    "micro_batch_sources",
    "net_changes",
    "number_of",
    "numbers_of",
    "numbers_read",
    "open_driver_stream",
    "operator_kinds",
    "plan_identity",
    "quoted",
    "read_sequence",
    "repeat_rows",
    "rows_given_later",
    "save",
    "scala_sequence",
    "settings_of",
    "show_statistics",
    "small_target",
    "snapshot",
    "source_sections",
    "stage_by_tasks",
    "stage_interval",
    "status_reader",
    "struct_of",
    "sync_names_above",
    "sync_path",
    "sync_tree",
    "times_of_changes",
    "to_arrow",
    "type_of",
    "updates_in_driver",
]
