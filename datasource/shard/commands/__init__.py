"""Every command that changes a shard, as a pure function `(state, now_ms, …) -> Transition`.

    readers     leased and critical readers: who holds back what
    append      compare-and-append: the only way updates get in
    evolve      the schema registry
    rollups     where whole states are stored
    merge       a merged batch takes the place of others
    gc          which old states are given up
    lifecycle   initialise, finalise

The machine may run a command many times before one attempt commits, and passes the time of *that*
attempt: a heartbeat stamped before the retry loop could be expired when it lands (materialize
#38060). Refusals that a caller must expect are results, not errors. Seqno, wall time, version and
expiry are the machine's business and are not set here.
"""
