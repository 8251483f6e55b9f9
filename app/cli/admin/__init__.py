"""The admin inspects and repairs the shards of a location, for the person on call.

Owns the verbs of `admin`, from the words of the command line to their exit status.

    command   the command line: verbs, options, exit statuses: start here
    plans     the effect of each verb, as values, without any change: for dry runs and reports
    acts      the verbs carried out
    views     plans, outcomes and reports as text; usages: the use of bytes as text

May use `datasource` in all its rooms: it is a tool for shards, with or without an application.

Invariants:
    Without `--commit` nothing is written, deleted or leased.
    A shard that newer code has written to is never changed, not even by a plan that is right.
"""
