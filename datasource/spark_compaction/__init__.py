"""Large merges as Spark jobs: the rows of one merge, spread over executors by ranges of the key.

    ranges    where to cut, and a filter for the rows of one range
    task      an executor's half: merges one range, and stages what comes out
    driver    plans, claims, runs the job, and applies the one result

The same merge as in a process (`shardline.datasource.parts.merge_parts`): each task reads all
inputs through the filter of its range, row groups outside of it left out by their bounds. The
outputs, one after
the other in the order of the ranges, are one sorted run, and one transition puts it in the place of
the inputs.
"""
