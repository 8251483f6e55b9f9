"""The project: SQL files to descriptions, checked against Spark before anything starts.

    Project.load(folder).check(spark) -> Resolved    descriptions in an order that works
    difference(wanted, running) -> Plan               what `run` would do
    parse_select, parse_subscribe, bind               what `sql` and `subscribe` need

Read from the bottom: `problems` says where something is wrong; `tokens` and `clauses` take our own
statements apart and `references` finds the names that a query reads; `statements` puts them
together; `names` and `graph` check what can be checked without Spark; `analyze` asks Spark's
analyzer, whose plan (`plantree`) tells `determinism` (with `frames`, of windows) and `strategy` the
rest; `overchanges` is a linear query's text over changes; `project` is the door.

Invariants:
    A query is never rewritten by a generator of SQL: names are replaced in the text as written, so
    that Spark reads exactly what the user wrote. The one module that imports Spark is `analyze`.
"""
