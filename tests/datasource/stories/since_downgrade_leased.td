# The shard's since is the meet of all leased readers, and moves only at a downgrade.
create
----
ok

compare-and-append lower=0 upper=10
1 a @1
2 b @5
----
appended [0, 10)

reader name=slow
----
since [0]

reader name=fast
----
since [0]

downgrade name=fast since=8
----
since [8]

state
----
since [0] upper [10]
[0, 10) rows 2 inline 1 blobs 0
reader fast since [8]
reader slow since [0]
anonymous writers 1

downgrade name=slow since=4
----
since [4]

# Going back changes nothing.
downgrade name=fast since=2
----
since [8]

state
----
since [4] upper [10]
[0, 10) rows 2 inline 1 blobs 0
reader fast since [8]
reader slow since [4]
anonymous writers 1

snapshot as_of=3
----
InvalidUsage [HISTORY_GONE]

snapshot as_of=4
----
1 a

# A reader that leaves does not move the since; the next downgrade of anybody does.
release name=slow
----
ok

state
----
since [4] upper [10]
[0, 10) rows 2 inline 1 blobs 0
reader fast since [8]
anonymous writers 1

downgrade name=fast since=8
----
since [8]

state
----
since [8] upper [10]
[0, 10) rows 2 inline 1 blobs 0
reader fast since [8]
anonymous writers 1

# A new reader starts at the shard's since, and cannot go below it.
reader name=late since=7
----
InvalidUsage [HISTORY_GONE]

reader name=late
----
since [8]
