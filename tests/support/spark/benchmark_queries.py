"""The queries of TPC-H and of Nexmark as views: their tables, and their texts for Spark.

Parameters of TPC-H are those of its validation runs. Of Nexmark, what Flink emits once is here what
a view shows at each time. q12 has the time of an event in the place of that of its reading.
"""

from __future__ import annotations

from typing import Final

__all__ = ["NEXMARK", "NEXMARK_TABLES", "TPCH", "TPCH_TABLES"]

TPCH_TABLES: Final = {
    "region": "r_regionkey INT, r_name STRING",
    "nation": "n_nationkey INT, n_name STRING, n_regionkey INT",
    "supplier": "s_suppkey BIGINT, s_name STRING, s_address STRING, s_nationkey INT, "
    "s_phone STRING, s_acctbal DECIMAL(12,2), s_comment STRING",
    "customer": "c_custkey BIGINT, c_name STRING, c_address STRING, c_nationkey INT, "
    "c_phone STRING, c_acctbal DECIMAL(12,2), c_mktsegment STRING, c_comment STRING",
    "part": "p_partkey BIGINT, p_name STRING, p_mfgr STRING, p_brand STRING, p_type STRING, "
    "p_size INT, p_container STRING, p_retailprice DECIMAL(12,2)",
    "partsupp": "ps_partkey BIGINT, ps_suppkey BIGINT, ps_availqty INT, "
    "ps_supplycost DECIMAL(12,2)",
    "orders": "o_orderkey BIGINT, o_custkey BIGINT, o_orderstatus STRING, "
    "o_totalprice DECIMAL(12,2), o_orderdate DATE, o_orderpriority STRING, o_shippriority INT, "
    "o_comment STRING",
    "lineitem": "l_orderkey BIGINT, l_partkey BIGINT, l_suppkey BIGINT, l_linenumber INT, "
    "l_quantity DECIMAL(12,2), l_extendedprice DECIMAL(12,2), l_discount DECIMAL(12,2), "
    "l_tax DECIMAL(12,2), l_returnflag STRING, l_linestatus STRING, l_shipdate DATE, "
    "l_commitdate DATE, l_receiptdate DATE, l_shipinstruct STRING, l_shipmode STRING",
}

TPCH: Final = {
    "q1": """SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty,
        sum(l_extendedprice) AS sum_base, sum(l_extendedprice * (1 - l_discount)) AS sum_disc,
        sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge,
        avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc,
        count(*) AS n FROM lineitem WHERE l_shipdate <= DATE '1998-09-02'
        GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus""",
    "q2": """SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
        FROM part, supplier, partsupp, nation, region WHERE p_partkey = ps_partkey
        AND s_suppkey = ps_suppkey AND p_size = 15 AND p_type LIKE '%BRASS'
        AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE'
        AND ps_supplycost = (SELECT min(ps_supplycost) FROM partsupp, supplier, nation, region
        WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND s_nationkey = n_nationkey
        AND n_regionkey = r_regionkey AND r_name = 'EUROPE')
        ORDER BY s_acctbal DESC, n_name, s_name, p_partkey LIMIT 100""",
    "q3": """SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate,
        o_shippriority FROM customer, orders, lineitem WHERE c_mktsegment = 'BUILDING'
        AND c_custkey = o_custkey AND l_orderkey = o_orderkey AND o_orderdate < DATE '1995-03-15'
        AND l_shipdate > DATE '1995-03-15' GROUP BY l_orderkey, o_orderdate, o_shippriority
        ORDER BY revenue DESC, o_orderdate, l_orderkey LIMIT 10""",
    "q4": """SELECT o_orderpriority, count(*) AS n FROM orders
        WHERE o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1993-10-01'
        AND EXISTS (SELECT * FROM lineitem WHERE l_orderkey = o_orderkey
        AND l_commitdate < l_receiptdate) GROUP BY o_orderpriority ORDER BY o_orderpriority""",
    "q5": """SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
        FROM customer, orders, lineitem, supplier, nation, region WHERE c_custkey = o_custkey
        AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey AND c_nationkey = s_nationkey
        AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'ASIA'
        AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'
        GROUP BY n_name ORDER BY revenue DESC""",
    "q6": """SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem
        WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
        AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
    "q7": """SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue FROM (
        SELECT n1.n_name AS supp_nation, n2.n_name AS cust_nation, year(l_shipdate) AS l_year,
        l_extendedprice * (1 - l_discount) AS volume
        FROM supplier, lineitem, orders, customer, nation n1, nation n2
        WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey
        AND s_nationkey = n1.n_nationkey AND c_nationkey = n2.n_nationkey
        AND ((n1.n_name = 'FRANCE' AND n2.n_name = 'GERMANY')
        OR (n1.n_name = 'GERMANY' AND n2.n_name = 'FRANCE'))
        AND l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31') shipping
        GROUP BY supp_nation, cust_nation, l_year ORDER BY supp_nation, cust_nation, l_year""",
    "q8": """SELECT o_year, sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0 END) / sum(volume)
        AS share FROM (SELECT year(o_orderdate) AS o_year,
        l_extendedprice * (1 - l_discount) AS volume, n2.n_name AS nation
        FROM part, supplier, lineitem, orders, customer, nation n1, nation n2, region
        WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey
        AND o_custkey = c_custkey AND c_nationkey = n1.n_nationkey
        AND n1.n_regionkey = r_regionkey AND r_name = 'AMERICA' AND s_nationkey = n2.n_nationkey
        AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
        AND p_type = 'ECONOMY ANODIZED STEEL') all_nations GROUP BY o_year ORDER BY o_year""",
    "q9": """SELECT nation, o_year, sum(amount) AS profit FROM (SELECT n_name AS nation,
        year(o_orderdate) AS o_year,
        l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount
        FROM part, supplier, lineitem, partsupp, orders, nation WHERE s_suppkey = l_suppkey
        AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey AND p_partkey = l_partkey
        AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey AND p_name LIKE '%green%')
        GROUP BY nation, o_year ORDER BY nation, o_year DESC""",
    "q10": """SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue,
        c_acctbal, n_name, c_address, c_phone, c_comment FROM customer, orders, lineitem, nation
        WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey
        AND o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1994-01-01'
        AND l_returnflag = 'R' AND c_nationkey = n_nationkey
        GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
        ORDER BY revenue DESC, c_custkey LIMIT 20""",
    "q11": """SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value
        FROM partsupp, supplier, nation WHERE ps_suppkey = s_suppkey
        AND s_nationkey = n_nationkey AND n_name = 'GERMANY' GROUP BY ps_partkey
        HAVING sum(ps_supplycost * ps_availqty) > (
        SELECT sum(ps_supplycost * ps_availqty) * 0.0001 FROM partsupp, supplier, nation
        WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY')
        ORDER BY value DESC""",
    "q12": """SELECT l_shipmode, sum(CASE WHEN o_orderpriority = '1-URGENT'
        OR o_orderpriority = '2-HIGH' THEN 1 ELSE 0 END) AS high, sum(CASE WHEN
        o_orderpriority <> '1-URGENT' AND o_orderpriority <> '2-HIGH' THEN 1 ELSE 0 END) AS low
        FROM orders, lineitem WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP')
        AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
        AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01'
        GROUP BY l_shipmode ORDER BY l_shipmode""",
    "q13": """SELECT c_count, count(*) AS custdist FROM (SELECT c_custkey,
        count(o_orderkey) AS c_count FROM customer LEFT OUTER JOIN orders
        ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%' GROUP BY c_custkey)
        GROUP BY c_count ORDER BY custdist DESC, c_count DESC""",
    "q14": """SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%'
        THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
        / sum(l_extendedprice * (1 - l_discount)) AS promo FROM lineitem, part
        WHERE l_partkey = p_partkey AND l_shipdate >= DATE '1995-09-01'
        AND l_shipdate < DATE '1995-10-01'""",
    "q15": """WITH revenue AS (SELECT l_suppkey AS supplier_no,
        sum(l_extendedprice * (1 - l_discount)) AS total FROM lineitem
        WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-04-01'
        GROUP BY l_suppkey) SELECT s_suppkey, s_name, s_address, s_phone, total
        FROM supplier, revenue WHERE s_suppkey = supplier_no
        AND total = (SELECT max(total) FROM revenue) ORDER BY s_suppkey""",
    "q16": """SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS n FROM partsupp, part
        WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM%'
        AND p_size IN (49, 14, 23, 45, 19, 3, 36, 9) AND ps_suppkey NOT IN (
        SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%')
        GROUP BY p_brand, p_type, p_size ORDER BY n DESC, p_brand, p_type, p_size""",
    "q17": """SELECT sum(l_extendedprice) / 7.0 AS avg_yearly FROM lineitem, part
        WHERE p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container = 'MED BOX'
        AND l_quantity < (SELECT 0.2 * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey)
        """,
    "q18": """SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice,
        sum(l_quantity) AS qty FROM customer, orders, lineitem WHERE o_orderkey IN (
        SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 300)
        AND c_custkey = o_custkey AND o_orderkey = l_orderkey
        GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
        ORDER BY o_totalprice DESC, o_orderdate, o_orderkey LIMIT 100""",
    "q19": """SELECT sum(l_extendedprice * (1 - l_discount)) AS revenue FROM lineitem, part
        WHERE (p_partkey = l_partkey AND p_brand = 'Brand#12' AND l_quantity BETWEEN 1 AND 11
        AND p_size BETWEEN 1 AND 5 AND l_shipmode IN ('AIR', 'REG AIR')) OR (
        p_partkey = l_partkey AND p_brand = 'Brand#23' AND l_quantity BETWEEN 10 AND 20
        AND p_size BETWEEN 1 AND 10 AND l_shipmode IN ('AIR', 'REG AIR'))""",
    "q20": """SELECT s_name, s_address FROM supplier, nation WHERE s_suppkey IN (
        SELECT ps_suppkey FROM partsupp WHERE ps_partkey IN (
        SELECT p_partkey FROM part WHERE p_name LIKE 'forest%') AND ps_availqty > (
        SELECT 0.5 * sum(l_quantity) FROM lineitem WHERE l_partkey = ps_partkey
        AND l_suppkey = ps_suppkey AND l_shipdate >= DATE '1994-01-01'
        AND l_shipdate < DATE '1995-01-01')) AND s_nationkey = n_nationkey
        AND n_name = 'CANADA' ORDER BY s_name""",
    "q21": """SELECT s_name, count(*) AS numwait FROM supplier, lineitem l1, orders, nation
        WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F'
        AND l1.l_receiptdate > l1.l_commitdate AND EXISTS (SELECT * FROM lineitem l2
        WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey)
        AND NOT EXISTS (SELECT * FROM lineitem l3 WHERE l3.l_orderkey = l1.l_orderkey
        AND l3.l_suppkey <> l1.l_suppkey AND l3.l_receiptdate > l3.l_commitdate)
        AND s_nationkey = n_nationkey AND n_name = 'SAUDI ARABIA' GROUP BY s_name
        ORDER BY numwait DESC, s_name LIMIT 100""",
    "q22": """SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal FROM (
        SELECT substring(c_phone, 1, 2) AS cntrycode, c_acctbal FROM customer
        WHERE substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17')
        AND c_acctbal > (SELECT avg(c_acctbal) FROM customer WHERE c_acctbal > 0.00
        AND substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17'))
        AND NOT EXISTS (SELECT * FROM orders WHERE o_custkey = c_custkey))
        GROUP BY cntrycode ORDER BY cntrycode""",
}

NEXMARK_TABLES: Final = {
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, "
    "dateTime TIMESTAMP, extra STRING",
    "auction": "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, "
    "reserve BIGINT, dateTime TIMESTAMP, expires TIMESTAMP, seller BIGINT, category BIGINT, "
    "extra STRING",
    "person": "id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, "
    "state STRING, dateTime TIMESTAMP, extra STRING",
    "side_input": "key BIGINT, value STRING",
}

_BEST: Final = """SELECT A.id, A.seller, B.price, B.dateTime, B.bidder FROM auction A JOIN bid B
    ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
    QUALIFY row_number() OVER (PARTITION BY A.id, A.seller
    ORDER BY B.price DESC, B.dateTime, B.bidder) = 1"""

NEXMARK: Final = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """SELECT P.name, P.city, P.state, A.id FROM auction AS A JOIN person AS P
        ON A.seller = P.id WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
    "q4": """SELECT category, avg(final) AS mean FROM (SELECT A.id, max(B.price) AS final,
        A.category FROM auction A JOIN bid B ON A.id = B.auction
        AND B.dateTime BETWEEN A.dateTime AND A.expires GROUP BY A.id, A.category)
        GROUP BY category""",
    "q5": """WITH counts AS (SELECT auction, count(*) AS num, window.start AS starttime
        FROM bid GROUP BY auction, window(dateTime, '10 seconds', '2 seconds'))
        SELECT c.auction, c.num FROM counts c JOIN (SELECT max(num) AS maxn, starttime
        FROM counts GROUP BY starttime) m ON c.starttime = m.starttime AND c.num >= m.maxn""",
    "q6": f"""SELECT id, seller, avg(price) OVER (PARTITION BY seller ORDER BY dateTime, id
        ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS mean FROM ({_BEST})""",  # noqa: S608
    "q7": """SELECT B.auction, B.price, B.bidder, B.dateTime, B.extra FROM bid B JOIN (
        SELECT max(price) AS maxprice, window.end AS dateTime FROM bid
        GROUP BY window(dateTime, '10 seconds')) B1 ON B.price = B1.maxprice
        WHERE B.dateTime BETWEEN B1.dateTime - INTERVAL '10' SECOND AND B1.dateTime""",
    "q8": """SELECT P.id, P.name, P.starttime FROM (SELECT id, name, window.start AS starttime
        FROM person GROUP BY id, name, window(dateTime, '10 seconds')) P JOIN (
        SELECT seller, window.start AS starttime FROM auction
        GROUP BY seller, window(dateTime, '10 seconds')) A
        ON P.id = A.seller AND P.starttime = A.starttime""",
    "q9": _BEST,
    "q10": """SELECT auction, bidder, price, dateTime, extra,
        date_format(dateTime, 'yyyy-MM-dd') AS day, date_format(dateTime, 'HH:mm') AS minute
        FROM bid""",
    "q11": """SELECT bidder, count(*) AS n, session_window.start AS starttime,
        session_window.end AS endtime FROM bid
        GROUP BY bidder, session_window(dateTime, '10 seconds')""",
    "q12": """SELECT bidder, count(*) AS n, window.start AS starttime FROM bid
        GROUP BY bidder, window(dateTime, '10 seconds')""",
    "q13": """SELECT B.auction, B.bidder, B.price, B.dateTime, S.value FROM bid B
        JOIN side_input S ON B.auction % 10000 = S.key""",
    "q14": """SELECT auction, bidder, 0.908 * price AS price, CASE WHEN hour(dateTime) >= 8
        AND hour(dateTime) <= 18 THEN 'dayTime' WHEN hour(dateTime) <= 6
        OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bidTimeType,
        length(regexp_replace(extra, '[^c]', '')) AS c_counts FROM bid
        WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": """SELECT date_format(dateTime, 'yyyy-MM-dd') AS day, count(*) AS total_bids,
        count(*) FILTER (WHERE price < 10000) AS rank1, count(DISTINCT bidder) AS bidders,
        count(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
        count(DISTINCT auction) AS auctions FROM bid GROUP BY date_format(dateTime, 'yyyy-MM-dd')
        """,
    "q16": """SELECT channel, date_format(dateTime, 'yyyy-MM-dd') AS day,
        max(date_format(dateTime, 'HH:mm')) AS minute, count(*) AS total_bids,
        count(DISTINCT bidder) AS bidders, count(DISTINCT auction) AS auctions FROM bid
        GROUP BY channel, date_format(dateTime, 'yyyy-MM-dd')""",
    "q17": """SELECT auction, date_format(dateTime, 'yyyy-MM-dd') AS day, count(*) AS total_bids,
        count(*) FILTER (WHERE price < 10000) AS rank1, min(price) AS lo, max(price) AS hi,
        avg(price) AS mean, sum(price) AS total FROM bid
        GROUP BY auction, date_format(dateTime, 'yyyy-MM-dd')""",
    "q18": """SELECT auction, bidder, price, channel, url, dateTime, extra FROM bid
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) <= 1""",
    "q19": """SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS n FROM bid
        QUALIFY n <= 10""",
    "q20": """SELECT B.auction, B.bidder, B.price, A.itemName, A.seller, A.category FROM bid B
        JOIN auction A ON B.auction = A.id WHERE A.category = 10""",
    "q21": """SELECT auction, bidder, price, channel, CASE WHEN lower(channel) = 'apple' THEN '0'
        WHEN lower(channel) = 'google' THEN '1'
        ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id FROM bid
        WHERE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL
        OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1,
        split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3 FROM bid""",
    "q23": """SELECT B.auction, B.bidder, B.price, P.name, A.itemName FROM bid B
        JOIN person P ON P.id = B.bidder JOIN auction A ON A.seller = B.bidder""",
}
