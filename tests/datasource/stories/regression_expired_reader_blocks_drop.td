# A reader whose lease is over does not keep a shard from being dropped.
create
----
ok

reader name=dead lease=1000
----
since [0]

drop
----
InvalidUsage [SHARD_IN_USE]

advance milliseconds=1001
----
ok

drop
----
ok
