# An evolution whose acknowledgement was lost may be asked for again.
create
----
ok

fail operation=create effect=after
----
ok

evolve
price double
----
schema 1

evolve
price double
----
schema 1

evolve client=b
price double
size int
----
schema 2

evolve
price double
----
InvalidUsage [INCOMPATIBLE_SCHEMA]
