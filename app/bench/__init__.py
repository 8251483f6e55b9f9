"""Benchmarks: throughput against Spark's Parquet, latency against its emptiest query, and more.

They measure and print; they never judge. A ratio compares two things measured in the same run,
in turns, on the same data, best round of each: on a shared machine figures move by a third.
"""
