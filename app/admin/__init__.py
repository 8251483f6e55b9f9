"""The admin's verbs change the shards of a location, each after it has said what that would do.

Owns what `admin LOCATION VERB` and the actions of a running application have in common: plans as
values, and deeds that are safe beside running writers.

    verb       a verb: one class with its plan and its deed: start here
    readers, upkeep, lifetime   those verbs
    plans      what they would do, as values
    sentences  the same in words

May use `datasource`: it works with or without an application.

Invariants:
    A plan writes, deletes and leases nothing.
    A shard that newer code has written to is never changed, not even by a plan that is right.
"""
