"""Parts: the files that hold a shard's rows, written, read, pruned and merged.

Owns the format of a part (Parquet in a blob, or an Arrow message inside of the state), staging,
fetching, pruning, and the rewriting of rows that a compaction needs.

May use: `shard`, `stores`, `rows`, `filters`, `types`. Start at `stage` (rows to parts), then
`fetch` (a part to rows).

Never: uses consensus. A thousand tasks fetch parts at once and must not queue for one log, so all
that a task needs is in its descriptor. Nor is a staged part deleted unless it is proven that no
record refers to it: `stage.UncommittedParts` is the only place that deletes one.

    stage, part_file      updates become parts; the bytes of one
    collect_stats         the statistics of a part, within a budget of bytes
    nan_bounds            which min/max bounds in a file can be trusted although NaN exists
    dictionary_columns    which columns of a file get a dictionary
    fetch, contents       one part to record batches; many parts to the rows at a time
    prune, row_groups     skip parts and row groups in which no row passes a filter
    sought_keys           rows that have one of many keys, without decoding the others
    read_ahead            a thread makes the next items while the current one is used
    verify                checks that a part's bytes are those that were written
    merge_parts           the parts of several batches become one sorted run
"""
