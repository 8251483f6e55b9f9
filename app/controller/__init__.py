"""Controllers: what should be there, and where in time it is read.

Reading order:
    as_of       where a new dataflow begins
    oracle      at which time a read sees everything that was written before it
    link        one connection to the runtime, kept up
    compute     views, indexes, peeks and subscriptions
    storage     sources and sinks

A controller may be started, killed and replaced while everything runs on: it says what should be
there, and the runtime finds out what that changes.
"""
