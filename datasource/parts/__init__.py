"""Parts: the files that hold a shard's rows, written, read, pruned and merged.

Owns the format of a part (Parquet in a blob, or an Arrow message inside of the state), staging,
fetching, and the rows that merges make.

May use: `shard`, `stores`, `rows`, `filters`, `types`. Start at `stage` (rows to parts), then
`fetch` (a part to rows).

Never: reaches consensus. A thousand tasks fetch parts at once and must not queue for one log, so
what a task needs is in the descriptor that it was given. Nor is a staged part deleted unless it is
proven that no record refers to it: `stage.UncommittedParts` is the only place that deletes one.

    stage, part_file      updates become parts; the bytes of one
    collect_stats         the statistics of a part, within a budget of bytes
    nan_bounds            which bounds in a file leave out no NaN
    fetch, contents       one part to record batches; many parts to the rows at a time
    prune, row_groups     what a filter need not read: parts, row groups
    read_ahead            the next item is made while the current one is used
    verify                is a part, byte for byte, what was written
    merge_parts           the parts of several batches become one sorted run
"""
