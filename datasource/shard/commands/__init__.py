"""Commands change a shard: each is a pure function `(state, now_ms, …) -> Transition`.

Owns every way in which a state becomes another one.

    transition          the result of a command: the next state, and an answer: start here
    append              compare-and-append: the only way updates get in
    readers             leases and since holds, which keep history and blobs
    retention           how far back a shard stays readable without readers
    evolve              the schema registry
    merge               a merged batch takes the place of others
    claims              notes of who is merging what
    rollups             where whole states are stored
    garbage_collection  how far garbage collection may go, and how far it has come
    orphan_sweep        the records that make an orphan sweep safe
    txns                writes that come from a transactions shard
    leader              shards whose upper follows that of another one
    lifecycle           initialise, finalise

May use: `state`, `trace`, `batch`, `description` and `covered_range` of `shard`; `types`, `errors`,
`frontier`.

Every decision about a shard is made here, on a value, so that it can be tested without a store and
is the same in every process. The machine may run a command many times before one attempt commits,
and passes the time of *that* attempt: a heartbeat stamped before the retry loop could be expired
when it lands (materialize #38060). Refusals that a caller must expect are results, not errors.

Must never: do I/O, read a clock, or set seqno, wall time or version; the machine sets them.
"""
