"""Stores: Blob and Consensus on local disks, S3, memory and other file systems.

    open        URL and options -> Location; puts the rest together
    objects     the seam that a backend implements
    memory, file, s3, fsspec        the backends
    log, entry  Consensus over any backend: numbered entries, a floor, a grace
    blob, ranged                    Blob over any backend
    probe       proves at creation that a store honours conditions; the location's marker
    retry, metered, faulty          wrappers

Imports nothing: `shardline.datasource.stores.open` loads the backend that a URL asks for.
"""
