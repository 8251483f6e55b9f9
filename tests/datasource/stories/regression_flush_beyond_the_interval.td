# A since beyond the flushed interval does not move rows out of it.
configure inline_part_bytes=4096 inline_state_bytes=1000
----
ok

create
----
ok

compare-and-append lower=0 upper=10
1 a @1
2 b @7
----
appended [0, 10)

hold name=h owner=x
----
since [0]

downgrade-hold name=h owner=x since=500
----
since [500]

compare-and-append lower=10 upper=20
3 c @11
----
appended [10, 20)

compare-and-append lower=20 upper=30
4 d @21
----
appended [20, 30)

state
----
since [500] upper [30]
[0, 20) rows 3 inline 0 blobs 1
[20, 30) rows 1 inline 1 blobs 0
hold h since [500]
anonymous writers 1

compare-and-append lower=30 upper=501
----
appended [30, 501)

snapshot as_of=500
----
1 a
2 b
3 c
4 d
