"""Runs large merges as Spark jobs: the rows of one merge are spread over executors by key range.

Owns the division of a merge into ranges, the job, and its one result.

    ranges     the values to cut at, and a filter for the rows of one range
    task       the executor's half: merges one range, and stages the result
    job_watch  the claim of a job, renewed while tasks finish, and its progress
    driver     plans, claims, runs the job, and applies the one result

A merge in one process is as fast as that process, however large the shard. Here the same merge
(`shardline.datasource.parts.merge_parts`) is spread: each task reads all inputs through the filter
of its range, and leaves out row groups outside of it by their bounds. The outputs, one after the
other in the order of the ranges, are one sorted run, and one transition puts it in the place of the
inputs. Start with `driver`.

May use: `maintenance`, `parts` and `client`.

Never: applies the result of some of the ranges, or merges without a claim what is larger than one
range.
"""
