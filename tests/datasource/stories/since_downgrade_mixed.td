# Leased readers and since holds hold back the shard's since together.
create
----
ok

compare-and-append lower=0 upper=100
1 a @10
----
appended [0, 100)

reader name=r
----
since [0]

hold name=h owner=x
----
since [0]

downgrade name=r since=50
----
since [50]

state
----
since [0] upper [100]
[0, 100) rows 1 inline 1 blobs 0
reader r since [50]
hold h since [0]
anonymous writers 1

downgrade-hold name=h owner=x since=30
----
since [30]

state
----
since [30] upper [100]
[0, 100) rows 1 inline 1 blobs 0
reader r since [50]
hold h since [30]
anonymous writers 1

release name=r
----
ok

state
----
since [30] upper [100]
[0, 100) rows 1 inline 1 blobs 0
hold h since [30]
anonymous writers 1

downgrade-hold name=h owner=x since=60
----
since [60]

state
----
since [60] upper [100]
[0, 100) rows 1 inline 1 blobs 0
hold h since [60]
anonymous writers 1

# Beyond the upper is fine: nothing before 200 will ever be read.
downgrade-hold name=h owner=x since=200
----
since [200]

state
----
since [200] upper [100]
[0, 100) rows 1 inline 1 blobs 0
hold h since [200]
anonymous writers 1

snapshot
----
Determinate [NOT_YET_READABLE]

compare-and-append lower=100 upper=300
2 b @150
----
appended [100, 300)

snapshot as_of=200
----
1 a
2 b
