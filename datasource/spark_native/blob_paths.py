"""Where Spark finds a location's blobs by itself, if it can."""

from __future__ import annotations

from pyspark.sql import SparkSession

from shardline.datasource.spark_native.jvm import has_class

__all__ = ["hadoop_url"]

_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def hadoop_url(spark: SparkSession, location: str) -> str | None:
    """The location's URL as Hadoop names it; None where this Spark has no way to it.

    Args:
        spark: Whose class path counts.
        location: A canonical URL.
    """
    scheme, _, rest = location.partition("://")
    if scheme == "file":
        return f"file:{rest}"
    if scheme == "s3" and has_class(spark, _S3A):
        return f"s3a://{rest}"
    return None
