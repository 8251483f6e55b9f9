"""What the person on call asks of a location, and does to it.

    plans     what each verb would do, as values: looks only, for dry runs and for reports
    acts      does it
    views     both as text for people; usages: that of bytes
    command   the command line: verbs, options, exit statuses

Invariants:
    Without `--commit` nothing is written, deleted or leased.
    A shard that newer code has written to is never changed, not even by a plan that is right.
"""
