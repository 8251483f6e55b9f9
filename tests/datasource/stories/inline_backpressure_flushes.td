# Tiny batches live in the state up to a budget; the append that meets it moves them to a blob.
configure inline_part_bytes=4096 inline_state_bytes=1500
----
ok

create
----
ok

compare-and-append lower=0 upper=10
1 a @1
----
appended [0, 10)

compare-and-append lower=10 upper=20
1 a @11 -1
2 b @12
----
appended [10, 20)

state
----
since [0] upper [20]
[0, 10) rows 1 inline 1 blobs 0
[10, 20) rows 2 inline 1 blobs 0
anonymous writers 1

compare-and-append lower=20 upper=30
3 c @21
----
appended [20, 30)

compare-and-append lower=30 upper=40
4 d @31
----
appended [30, 40)

compare-and-append lower=40 upper=50
5 e @41
----
appended [40, 50)

compare-and-append lower=50 upper=60
6 f @51
----
appended [50, 60)

state
----
since [0] upper [60]
[0, 40) rows 5 inline 0 blobs 1
[40, 50) rows 1 inline 1 blobs 0
[50, 60) rows 1 inline 1 blobs 0
anonymous writers 1

snapshot as_of=5
----
1 a

snapshot as_of=59
----
2 b
3 c
4 d
5 e
6 f

reader name=r
----
since [0]

listen reader=r as_of=5 until=40
----
[6, 40)
1 a @11 -1
2 b @12 +1
3 c @21 +1
4 d @31 +1
