"""The lane: one durable order of everything that starts, changes or ends what runs.

Reading order:
    commands     what is put in order, and how a position in the order looks
    state        what the order amounts to: ids, descriptions, lives; a pure fold
    fleet        what runs in this process, and what is to be started or stopped next; pure as well
    effects      threads for what takes long: rendering, stopping
    holder       who holds the lane: one process at a time
    log          the order itself, in a shard of the location; the fence
    settings     bounds and pauses
    lane         one thread that ties them together
"""
