# A since hold has one owner: taking it over stops whoever had it.
create
----
ok

append-now
1 a
----
appended [0, 1700000000001)

hold name=query owner=first
----
since [0]

hold name=query owner=second client=b
----
since [0]

downgrade-hold name=query owner=first since=5
----
Fenced [FENCED]

state
----
since [0] upper [1700000000001]
[0, 1700000000001) rows 1 inline 1 blobs 0
hold query since [0]
anonymous writers 1

downgrade-hold name=query owner=second since=5
----
since [5]

expire-hold name=query owner=first
----
Fenced [FENCED]

state
----
since [5] upper [1700000000001]
[0, 1700000000001) rows 1 inline 1 blobs 0
hold query since [5]
anonymous writers 1
