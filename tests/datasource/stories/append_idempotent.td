# A durable writer's append happens once, however often it is repeated and by whichever process.
create
----
ok

append-now writer=etl sequence=7
1 a
----
appended [0, 1700000000001)

append-now writer=etl sequence=7
1 a
----
already committed, upper [1700000000001]

restart
----
ok

append-now writer=etl sequence=7
1 a
----
already committed, upper [1700000000001]

append-now writer=etl sequence=3 client=b
9 z
----
already committed, upper [1700000000001]

# The interval does not matter: what has happened has happened.
compare-and-append writer=etl sequence=7 lower=0 upper=5
1 a
----
already committed, upper [1700000000001]

append-now writer=etl sequence=8 client=b
2 b
----
appended [1700000000001, 1700000000002)

# A writer that does not count for itself goes on where the last one stopped.
restart
----
ok

append-now writer=etl
3 c
----
appended [1700000000002, 1700000000003)

# A lost acknowledgement is found out within the call.
fail operation=create effect=after
----
ok

append-now writer=etl sequence=20
4 d
----
appended [1700000000003, 1700000000004)

fail operation=create effect=self-retry
----
ok

append-now writer=etl sequence=21
5 e
----
appended [1700000000004, 1700000000005)

fail operation=create effect=late
----
ok

append-now writer=etl sequence=22
6 f
----
appended [1700000000005, 1700000000006)

deliver
----
1 delivered

snapshot
----
1 a
2 b
3 c
4 d
5 e
6 f

state
----
since [0] upper [1700000000006]
[0, 1700000000001) rows 1 inline 1 blobs 0
[1700000000001, 1700000000002) rows 1 inline 1 blobs 0
[1700000000002, 1700000000003) rows 1 inline 1 blobs 0
[1700000000003, 1700000000004) rows 1 inline 1 blobs 0
[1700000000004, 1700000000005) rows 1 inline 1 blobs 0
[1700000000005, 1700000000006) rows 1 inline 1 blobs 0
writer etl sequence 22
