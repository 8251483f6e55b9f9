# A writer that lost a race sees the winner and goes on.
create
----
ok

append-now client=a
1 a
----
appended [0, 1700000000001)

append-now client=b
2 b
----
appended [1700000000001, 1700000000002)

append-now client=a
3 c
----
appended [1700000000002, 1700000000003)

compare-and-append client=b lower=0 upper=10
9 z
----
upper mismatch: expected [0], current [1700000000003]

fail client=b operation=create effect=phantom times=2
----
ok

append-now client=b
4 d
----
appended [1700000000003, 1700000000004)

overtake times=12 client=b
----
ok

append-now client=b
5 e
----
appended [1700000000075, 1700000000076)

snapshot client=c
----
1 a
2 b
3 c
4 d
5 e

state
----
since [0] upper [1700000000076]
[0, 1700000000001) rows 1 inline 1 blobs 0
[1700000000001, 1700000000002) rows 1 inline 1 blobs 0
[1700000000002, 1700000000003) rows 1 inline 1 blobs 0
[1700000000003, 1700000000004) rows 1 inline 1 blobs 0
[1700000000004, 1700000000076) rows 1 inline 1 blobs 0
anonymous writers 3
