# A lease that runs out is forgotten at the next change, and the since stays until a downgrade.
create
----
ok

compare-and-append lower=0 upper=10
1 a @1
----
appended [0, 10)

reader name=crashed lease=1000
----
since [0]

reader name=alive lease=100000
----
since [0]

downgrade name=alive since=9
----
since [9]

advance milliseconds=1001
----
ok

state
----
since [0] upper [10]
[0, 10) rows 1 inline 1 blobs 0
reader alive since [9]
reader crashed since [0]
anonymous writers 1

compare-and-append lower=10 upper=20
----
appended [10, 20)

state
----
since [0] upper [20]
[0, 10) rows 1 inline 1 blobs 0
[10, 20) rows 0
reader alive since [9]
anonymous writers 1

heartbeat name=crashed
----
LeaseExpired [LEASE_EXPIRED]

snapshot reader=crashed as_of=12
----
LeaseExpired [LEASE_EXPIRED]

heartbeat name=alive
----
ok

state
----
since [0] upper [20]
[0, 10) rows 1 inline 1 blobs 0
[10, 20) rows 0
reader alive since [9]
anonymous writers 1

downgrade name=alive since=9
----
since [9]

state
----
since [9] upper [20]
[0, 10) rows 1 inline 1 blobs 0
[10, 20) rows 0
reader alive since [9]
anonymous writers 1
