# Batches whose updates cancel leave an empty batch that fuses with its neighbours.
configure inline_part_bytes=4096 inline_state_bytes=1000
----
ok

create
----
ok

compare-and-append lower=0 upper=5
----
appended [0, 5)

hold name=h owner=x
----
since [0]

downgrade-hold name=h owner=x since=500
----
since [500]

compare-and-append lower=5 upper=10
1 a @6
----
appended [5, 10)

compare-and-append lower=10 upper=20
1 a @11 -1
----
appended [10, 20)

compare-and-append lower=20 upper=30
4 d @21
----
appended [20, 30)

state
----
since [500] upper [30]
[0, 30) rows 1 inline 1 blobs 0
hold h since [500]
anonymous writers 1

snapshot as_of=29
----
InvalidUsage [HISTORY_GONE]

compare-and-append lower=30 upper=501
----
appended [30, 501)

snapshot as_of=500
----
4 d
