# Updates lie inside the interval that is appended.
create
----
ok

compare-and-append lower=0 upper=10
1 a @10
----
InvalidUsage [TIME_OUT_OF_RANGE]

compare-and-append lower=0 upper=10
1 a @-1
----
InvalidUsage [TIME_OUT_OF_RANGE]

compare-and-append lower=0 upper=10
1 a @9
----
appended [0, 10)

compare-and-append lower=0 upper=20
2 b @12
----
upper mismatch: expected [0], current [10]

append-now
2 b @3
----
InvalidUsage [TIME_OUT_OF_RANGE]

append-now
2 b @15
----
appended [10, 16)

append-now
3 c @9223372036854775806
----
appended [16, 9223372036854775807)

append-now
4 d
----
InvalidUsage [TIME_OUT_OF_RANGE]

append-now
----
InvalidUsage [INVALID_INTERVAL]

state
----
since [0] upper [9223372036854775807]
[0, 10) rows 1 inline 1 blobs 0
[10, 16) rows 1 inline 1 blobs 0
[16, 9223372036854775807) rows 1 inline 1 blobs 0
anonymous writers 1

snapshot
----
1 a
2 b
3 c
