# A lease registered after long contention lasts from its commit, not from its first attempt.
create
----
ok

overtake times=5 milliseconds=2000
----
ok

reader name=r lease=5000
----
since [0]

advance milliseconds=4000
----
ok

append-now client=b
1 a
----
appended [1700000011052, 1700000015655)

heartbeat name=r
----
ok

snapshot reader=r
----
1 a
