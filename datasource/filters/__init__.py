"""Filters on rows: SQL text in, answers about rows and about whole parts out.

Owns the option `where` of reads: how it is parsed (as Spark parses it), bound to a schema, and
evaluated, on rows and on the statistics of rows that have not been read.

May use: `types`. Start at `parser`, then `predicates`.

Never: keeps out a row that Spark would keep. A node of the SQL tree that is not understood is
refused with an error before anything is read, never passed over.

    sql_tree      text to a tree of which every node is known to its readers
    sql_literals  literals of Spark's SQL as values
    comparisons   a column compared with a literal, as Spark coerces the two
    predicates    what a filter says of a row, and of rows known by statistics only
    parser        text to a predicate over a schema
"""
