# Old parts are read under the new schema; what cannot be read is refused with its column.
create key=id
----
ok

append-now
1 a
2 b
----
appended [0, 1700000000001)

evolve
id long
v string
price double
----
schema 1

evolve
id long
v string
price double
----
schema 1

# A handle that was opened before goes on under its own schema.
append-now
1 a -1
----
appended [1700000000001, 1700000000002)

restart
----
ok

append-now
3 c 4.5
2 b null -1
2 b 0.0
----
appended [1700000000002, 1700000000003)

snapshot
----
2 b 0.0
3 c 4.5

evolve
id string
v string
----
InvalidUsage [INCOMPATIBLE_SCHEMA]

# Columns keep their order and are not dropped.
evolve
v string
----
InvalidUsage [INCOMPATIBLE_SCHEMA]

state
----
since [0] upper [1700000000003]
[0, 1700000000001) rows 2 inline 1 blobs 0
[1700000000001, 1700000000002) rows 1 inline 1 blobs 0
[1700000000002, 1700000000003) rows 3 inline 1 blobs 0
schemas [0, 1]
anonymous writers 2
