"""Translates the URL of a location for Spark's own readers and writers, where they can reach it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from shardline.datasource.spark_native.jvm import has_class

__all__ = ["hadoop_url"]

_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"


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
