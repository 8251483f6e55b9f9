"""Stores: Blob and Consensus on local disks, S3, memory and other file systems.

Owns every request to a store, what its answers prove, and the layout of a location below its URL.

May use: `errors`, `clock`, `ids`. Start at `location` (the two seams), then `objects` (what a
backend must provide), then `log`, where a commit is decided.

Never: interprets records or blobs, decides what may be deleted, or repeats a create without reading
back what the first attempt did. Two writers would both believe that they committed.

    location    the two seams, Blob and Consensus
    shard_names, options            names and storage options as users write them
    open        URL and options -> Location; puts a backend and its wrappers together
    objects     the interface that a backend implements
    memory, file, s3, fsspec        the backends
    log, entry  Consensus over any backend: numbered entries, a floor, a grace
    log_observations                what a process remembers of one log
    instant     the age of what was observed, by two clocks
    blob, ranged                    Blob over any backend
    probe       proves at creation that a store honours conditions; the location's marker
    retry, metered, faulty          wrappers

Importing this package loads no backend: `shardline.datasource.stores.open` does, by the URL.
"""
