# Idle progress costs no batches.
create
----
ok

compare-and-append lower=0 upper=10
----
appended [0, 10)

compare-and-append lower=10 upper=20
----
appended [10, 20)

state
----
since [0] upper [20]
[0, 20) rows 0
anonymous writers 1

compare-and-append lower=20 upper=30
1 a @25
----
appended [20, 30)

state
----
since [0] upper [30]
[0, 30) rows 1 inline 1 blobs 0
anonymous writers 1

compare-and-append lower=30 upper=40
----
appended [30, 40)

compare-and-append lower=40 upper=50
----
appended [40, 50)

state
----
since [0] upper [50]
[0, 30) rows 1 inline 1 blobs 0
[30, 50) rows 0
anonymous writers 1

# An append of nothing at no time is legal, and remembered.
compare-and-append writer=w sequence=1 lower=50 upper=50
----
appended [50, 50)

compare-and-append writer=w sequence=1 lower=50 upper=60
----
already committed, upper [50]

compare-and-append lower=50 upper=50
1 a
----
InvalidUsage [TIME_OUT_OF_RANGE]

compare-and-append lower=50 upper=40
----
InvalidUsage [INVALID_INTERVAL]

compare-and-append lower=50 upper=9223372036854775808
----
InvalidUsage [INVALID_INTERVAL]

compare-and-append lower=50 upper=end
----
appended [50, end)

append-now
2 b
----
InvalidUsage [SHARD_FINISHED]

state
----
since [0] upper []
[0, 30) rows 1 inline 1 blobs 0
[30, end) rows 0
writer w sequence 1
anonymous writers 1

snapshot
----
1 a
