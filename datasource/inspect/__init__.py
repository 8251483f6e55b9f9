"""Looks into a location without changing it: reports, usage, and a check of everything.

Owns all that people and programs are shown of shards: plain values made from states, and every
finding of a check, with a stable code and a hint.

May use: everything below `client`. Start at `report`; `fsck` has a map of its own.

Never: writes, takes a lease, or lets one unreadable shard hide the others.

    report       a shard as a plain value
    inspection   the reports of a location
    usage        every byte of a shard, by the reason why it is still there
    fsck/        compares all objects of a location with the states that describe them
"""
