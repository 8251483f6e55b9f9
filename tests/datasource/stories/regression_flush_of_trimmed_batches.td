# A batch that was cut to a tighter interval has parts with rows of others: they are not its own.
configure inline_part_bytes=4096 inline_state_bytes=1300
----
ok

create
----
ok

append lower=0 upper=10
1 a @1
2 b @7
----
appended [0, 10)

append lower=5 upper=20
2 b @7
3 c @15
----
appended [10, 20)

compare-and-append lower=20 upper=30
4 d @21
----
appended [20, 30)

compare-and-append lower=30 upper=40
5 e @31
----
appended [30, 40)

state
----
since [0] upper [40]
[0, 30) rows 4 inline 0 blobs 1
[30, 40) rows 1 inline 1 blobs 0
anonymous writers 1

snapshot
----
1 a
2 b
3 c
4 d
5 e
