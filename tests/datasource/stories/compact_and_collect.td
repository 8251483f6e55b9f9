# Merging and collecting are invisible to readers, and a lease keeps what it may still read.
configure inline_part_bytes=0
----
ok

create
----
ok

compare-and-append lower=0 upper=10
1 a @1
2 b @2
----
appended [0, 10)

compare-and-append lower=10 upper=20
1 a @11 -1
3 c @12
----
appended [10, 20)

hold name=report owner=x
----
since [0]

reader name=r
----
since [0]

compact force=true
----
1 merged

state
----
since [0] upper [20]
[0, 20) rows 4 inline 0 blobs 1
reader r since [0]
hold report since [0]
anonymous writers 1

# The lease is at a state that names both parts.
collect-garbage
----
0 deleted

snapshot reader=r as_of=5
----
1 a
2 b

downgrade name=r since=15
----
since [15]

downgrade-hold name=report owner=x since=15
----
since [15]

compact force=true
----
1 merged

state
----
since [15] upper [20]
[0, 20) rows 2 inline 0 blobs 1
reader r since [15]
hold report since [15]
anonymous writers 1

snapshot reader=r as_of=15
----
2 b
3 c

release name=r
----
ok

collect-garbage
----
3 deleted

collect-garbage
----
0 deleted

snapshot client=b
----
2 b
3 c
