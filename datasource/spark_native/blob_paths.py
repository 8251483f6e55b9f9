"""Translates the URL of a location for Spark's own readers and writers, where they can reach it.

That there is a file system for the scheme is not enough: credentials and endpoint of s3a are
Hadoop's own, and two stores have buckets of one name. So a store counts as reached once Spark's
file system has seen an object there that our own client knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from shardline.datasource.spark_native.jvm import file_size, has_class

__all__ = ["hadoop_url", "reaches_object", "store_name", "was_reached"]

_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"

_NAMES_STORE: Final = ("s3.endpoint", "s3.region", "fsspec.")
"""Beginnings of the options that say which store it is, and not by whom or how it is read."""

_reached: Final[set[str]] = set()
"""Object stores that Spark's own file system was seen to read, by `store_name`."""


def hadoop_url(spark: SparkSession, location: str) -> str | None:
    """The location's URL for Hadoop; None if this Spark cannot reach it.

    Args:
        spark: The session whose class path decides.
        location: A canonical URL.
    """
    scheme, _, rest = location.partition("://")
    if scheme == "file":
        return f"file:{rest}"
    if scheme == "s3" and has_class(spark, _S3A):
        return f"s3a://{rest}"
    return None


def was_reached(root: str, storage: Mapping[str, str]) -> bool:
    """True if Spark's file system is known to reach the store of `root`; a local disk is.

    Args:
        root: A location's URL for Hadoop.
        storage: Options of the store, as our own client has them.
    """
    return root.startswith("file:") or store_name(root, storage) in _reached


def reaches_object(
    spark: SparkSession, root: str, storage: Mapping[str, str], key: str, size_bytes: int
) -> bool:
    """True if Spark's file system finds an object of this size, which is then remembered.

    Args:
        spark: The session whose file system is asked.
        root: A location's URL for Hadoop.
        storage: Options of the store, as our own client has them.
        key: An object below `root` that our own client knows.
        size_bytes: Its size.

    Raises:
        Py4JError: The calling thread was interrupted.
    """
    found = file_size(spark, f"{root}/{key}") == size_bytes
    if found:
        _reached.add(store_name(root, storage))
    return found


def store_name(url: str, storage: Mapping[str, str]) -> str:
    """A location by all that names it: stores behind two endpoints have buckets of one name.

    And by nothing else: one store read with two sets of credentials, or of time-outs, is one.
    """
    named = {key: value for key, value in storage.items() if key.startswith(_NAMES_STORE)}
    return repr((url, sorted(named.items())))
