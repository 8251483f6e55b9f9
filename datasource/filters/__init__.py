"""Evaluates filters on rows: from SQL text to answers about rows and about whole parts.

Owns the option `where` of reads: how it is parsed (as Spark parses it), bound to a schema, and
evaluated, on rows and on the statistics of rows that have not been read.

May use: `types`. Start at `parser`, then `predicates`.

Never: leaves out a row that Spark would keep. SQL that is not understood is refused with an error
before anything is read, never ignored.

    sql_tree      parses text to a tree, and refuses nodes that no reader of the tree knows
    sql_literals  literals of Spark's SQL as values
    comparisons   a column compared with a literal, as Spark coerces the two
    predicates    the value of a filter for rows, and for rows known by statistics only
    parser        text to a predicate over a schema
"""
