# A dropped shard is gone for good; one made again under its name is another shard.
create
----
ok

append-now writer=etl sequence=5
1 a
----
appended [0, 1700000000001)

reader name=r
----
since [0]

drop
----
InvalidUsage [SHARD_IN_USE]

drop despite=r
----
ok

drop
----
ok

state
----
since [] upper []
[0, end) rows 0
tombstone

snapshot
----
InvalidUsage [SHARD_DROPPED]

snapshot reader=r
----
InvalidUsage [SHARD_DROPPED]

append-now writer=etl sequence=6
2 b
----
InvalidUsage [SHARD_FINISHED]

listen reader=r as_of=1
----
InvalidUsage [SHARD_DROPPED]

create
----
ok

# The old writer's rows are of another shard's schema, and its numbers of another shard's memory.
append-now writer=etl sequence=6
2 b
----
InvalidUsage [SHARD_CHANGED]

restart
----
ok

append-now writer=etl sequence=1
3 c
----
appended [0, 1700000000001)

snapshot
----
3 c

snapshot reader=r
----
LeaseExpired [LEASE_EXPIRED]

listen reader=r as_of=1
----
LeaseExpired [LEASE_EXPIRED]

heartbeat name=r
----
LeaseExpired [LEASE_EXPIRED]

state
----
since [0] upper [1700000000001]
[0, 1700000000001) rows 1 inline 1 blobs 0
writer etl sequence 1
