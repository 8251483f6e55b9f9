"""Looks into a location without changing it: reports, usage, and a check of everything.

Owns what people and programs are shown of shards: plain values made of states, and every finding
of a check with a stable code and what to do about it.

May use: everything below `client`. Start at `report`; `fsck` has a map of its own.

Never: writes, takes a lease, or lets one unreadable shard hide the others.

    report       a shard as a plain value
    inspection   the reports of a location
    usage        what every byte of a shard is there for
    fsck/        all that a location holds, compared with all that is said of it
"""
