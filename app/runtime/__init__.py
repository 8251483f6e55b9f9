"""The unified runtime: one SparkSession, one lane, and all objects of both controllers in it.

Owns the loop that ties connections, workers and the lane together (Materialize's unified clusterd
runtime), its settings, and the removal of what dropped objects have left.

May use: `compute`, `storage`, `introspection`, `lane`, `transport`, `execution`. Start at
`runtime`.

Never: changes what runs in another way than through a command that has a place in the lane's order.

    runtime    the loop
    settings   bounds and pauses of lane, peeks, subscriptions, indexes and connections
    objects    makes objects run, by kind; keeps those that take settings while they run
    cleanup    removes what a dropped object has left: checkpoints, holds
    presence   who holds the location and who controls the runtime, for introspection
"""
