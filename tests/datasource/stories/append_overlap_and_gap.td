# Several writers of the same data: what is there is trimmed, a gap is refused.
create
----
ok

append lower=0 upper=10
1 a @1
2 b @7
----
appended [0, 10)

append lower=5 upper=15 client=b
2 b @7
3 c @12
----
appended [10, 15)

append lower=0 upper=15 client=b
1 a @1
2 b @7
3 c @12
----
already committed, upper [15]

append lower=20 upper=30
4 d @25
----
upper mismatch: expected [20], current [15]

snapshot as_of=14
----
1 a
2 b
3 c

# A time before the interval is a mistake, not an overlap.
append lower=15 upper=20
9 z @3
----
InvalidUsage [TIME_OUT_OF_RANGE]

# Rows without a time are at the interval's first: all writers must agree.
append lower=15 upper=20
5 e
----
appended [15, 20)

append lower=15 upper=25 client=b
5 e
6 f @22
----
InvalidUsage [WRONG_TYPE]

append lower=15 upper=25 client=b
5 e @15
6 f @22
----
appended [20, 25)

state
----
since [0] upper [25]
[0, 10) rows 2 inline 1 blobs 0
[10, 15) rows 2 inline 1 blobs 0
[15, 20) rows 1 inline 1 blobs 0
[20, 25) rows 2 inline 1 blobs 0
anonymous writers 2

snapshot as_of=24
----
1 a
2 b
3 c
5 e
6 f

reader name=r
----
since [0]

listen reader=r as_of=0 until=25
----
[1, 25)
1 a @1 +1
2 b @7 +1
3 c @12 +1
5 e @15 +1
6 f @22 +1

# An empty interval before a trimmed batch stays its own: what was settled there stays settled.
append lower=25 upper=30
----
appended [25, 30)

append lower=25 upper=35
8 settled @26
9 new @32
----
appended [30, 35)

state
----
since [24] upper [35]
[0, 10) rows 2 inline 1 blobs 0
[10, 15) rows 2 inline 1 blobs 0
[15, 20) rows 1 inline 1 blobs 0
[20, 25) rows 2 inline 1 blobs 0
[25, 30) rows 0
[30, 35) rows 2 inline 1 blobs 0
reader r since [24]
anonymous writers 2

snapshot as_of=34
----
1 a
2 b
3 c
5 e
6 f
9 new
