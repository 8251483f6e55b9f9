# A since hold keeps history while its owner is away, whatever time passes.
create
----
ok

compare-and-append lower=0 upper=10
1 a @1
1 a @6 -1
----
appended [0, 10)

hold name=report owner=monday
----
since [0]

downgrade-hold name=report owner=monday since=5
----
since [5]

state
----
since [5] upper [10]
[0, 10) rows 2 inline 1 blobs 0
hold report since [5]
anonymous writers 1

# A hold moves forward only.
downgrade-hold name=report owner=monday since=3
----
since [5]

restart
----
ok

advance milliseconds=864000000000
----
ok

snapshot as_of=5
----
1 a

hold name=report owner=tuesday since=9
----
since [5]

downgrade-hold name=report owner=tuesday since=7
----
since [7]

state
----
since [7] upper [10]
[0, 10) rows 2 inline 1 blobs 0
hold report since [7]

expire-hold name=report owner=tuesday
----
expired

# Whoever owned it is told; the since stays where it was.
downgrade-hold name=report owner=tuesday since=9
----
LeaseExpired [HOLD_EXPIRED]

expire-hold name=report owner=tuesday
----
was not there

state
----
since [7] upper [10]
[0, 10) rows 2 inline 1 blobs 0
