"""The admin's verbs change the shards of a location, each after it has said what that would do.

Owns what `admin LOCATION VERB` and the actions of a running application have in common: plans as
values, and deeds that are safe beside running writers.

    verb       a verb: one class with its plan and its deed: start here
    readers    gives up leases and holds, whoever owns them
    upkeep     merges batches, collects garbage, sweeps what crashes have left
    lifetime   sets how far back a shard stays readable, and drops it for good
    plans      what the verbs would do, as values
    sentences  the same in words

May use `datasource`: it works with or without an application.

Never: writes, deletes or leases anything for a plan; changes a shard that newer code has written
to, not even by a plan that is right.
"""
