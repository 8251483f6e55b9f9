# Overwriting appends what changed and nothing else.
create
----
ok

append-now
1 a
1 a
2 b
null c
----
appended [0, 1700000000001)

reader name=r
----
since [0]

overwrite writer=w sequence=1
1 a
2 B
null c
----
appended [1700000000001, 1700000000002)

overwrite writer=w sequence=1
7 z
----
already committed, upper [1700000000002]

snapshot
----
1 a
2 B
None c

listen reader=r as_of=1700000000000
----
[1700000000001, 1700000000002)
1 a @1700000000001 -1
2 B @1700000000001 +1
2 b @1700000000001 -1

overwrite writer=w sequence=2
1 a
2 B
null c
----
appended [1700000000002, 1700000000011)

overwrite writer=w sequence=3
----
appended [1700000000011, 1700000000012)

snapshot
----
ok

overwrite writer=w sequence=4
1 a -1
----
InvalidUsage [OVERWRITE_WITH_CHANGES]

overwrite writer=w sequence=4
1 a @5
----
InvalidUsage [OVERWRITE_WITH_CHANGES]

state
----
since [1700000000001] upper [1700000000012]
[0, 1700000000001) rows 4 inline 1 blobs 0
[1700000000001, 1700000000002) rows 3 inline 1 blobs 0
[1700000000002, 1700000000012) rows 3 inline 1 blobs 0
reader r since [1700000000001]
writer w sequence 3
anonymous writers 1
