# A snapshot and the changes after it have neither gap nor overlap.
create
----
ok

snapshot
----
InvalidUsage [NOTHING_APPENDED]

compare-and-append lower=0 upper=10
1 a @0
2 b @9
----
appended [0, 10)

compare-and-append lower=10 upper=20
2 b @10 -1
3 c @10 +2
----
appended [10, 20)

reader name=r
----
since [0]

snapshot reader=r as_of=9
----
1 a
2 b

listen reader=r as_of=9 until=20
----
[10, 20)
2 b @10 -1
3 c @10 +2

state
----
since [19] upper [20]
[0, 10) rows 2 inline 1 blobs 0
[10, 20) rows 2 inline 1 blobs 0
reader r since [19]
anonymous writers 1

# What the listener has passed is no longer held for it.
snapshot reader=r as_of=18
----
InvalidUsage [HISTORY_GONE]

snapshot reader=r as_of=19
----
1 a
3 c
3 c

snapshot reader=r as_of=20
----
Determinate [NOT_YET_READABLE]

snapshot reader=r as_of=0
----
InvalidUsage [HISTORY_GONE]

listen reader=r as_of=3
----
InvalidUsage [HISTORY_GONE]

# Removing what is not there is found by the reader that adds it up.
compare-and-append lower=20 upper=30
4 d @25 -1
----
appended [20, 30)

snapshot reader=r as_of=29
----
Corrupt [NEGATIVE_MULTIPLICITY]
