"""The admin inspects and repairs the shards of a location, for the person on call.

Owns the verbs of `admin`, from the words of the command line to their exit status.

    command   the command line: verbs, options, exit statuses: start here
    verb      a verb that changes something: one class with its plan, its deed and how it is shown
    readers, upkeep, lifetime   those verbs
    plans     what they would do, as values: for dry runs and reports
    views     what is found, as text; usages: the use of bytes as text

May use `datasource` in all its rooms: it is a tool for shards, with or without an application.

Invariants:
    Without `--commit` nothing is written, deleted or leased.
    A shard that newer code has written to is never changed, not even by a plan that is right.
"""
