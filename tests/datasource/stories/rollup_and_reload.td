# A restarted client finds the state through a rollup and the records after it.
configure rollup_every=4
----
ok

create
----
ok

append-now
1 a
----
appended [0, 1700000000001)

append-now
2 b
----
appended [1700000000001, 1700000000002)

append-now
3 c
----
appended [1700000000002, 1700000000003)

state seqno
----
since [0] upper [1700000000003]
[0, 1700000000001) rows 1 inline 1 blobs 0
[1700000000001, 1700000000002) rows 1 inline 1 blobs 0
[1700000000002, 1700000000003) rows 1 inline 1 blobs 0
anonymous writers 1
seqno 4

append-now
4 d
----
appended [1700000000003, 1700000000004)

state seqno
----
since [0] upper [1700000000004]
[0, 1700000000001) rows 1 inline 1 blobs 0
[1700000000001, 1700000000002) rows 1 inline 1 blobs 0
[1700000000002, 1700000000003) rows 1 inline 1 blobs 0
[1700000000003, 1700000000004) rows 1 inline 1 blobs 0
anonymous writers 1
seqno 5

restart
----
ok

snapshot
----
1 a
2 b
3 c
4 d

rollup
----
written

state seqno
----
since [0] upper [1700000000004]
[0, 1700000000001) rows 1 inline 1 blobs 0
[1700000000001, 1700000000002) rows 1 inline 1 blobs 0
[1700000000002, 1700000000003) rows 1 inline 1 blobs 0
[1700000000003, 1700000000004) rows 1 inline 1 blobs 0
anonymous writers 1
rollups [7]
seqno 8

# A rollup whose write fails costs nothing but the attempt.
fail operation=put effect=before times=6
----
ok

append-now
5 e
----
appended [1700000000004, 1700000000005)

append-now
6 f
----
appended [1700000000005, 1700000000006)

append-now
7 g
----
appended [1700000000006, 1700000000007)

restart
----
ok

snapshot
----
1 a
2 b
3 c
4 d
5 e
6 f
7 g
