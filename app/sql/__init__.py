"""The query language, without objects: what a text reads, and what Spark makes of it.

Owns Spark's tokens, names in queries, how a query is analysed (by Spark's own analyser), whether
its result depends on more than its inputs, and how it can be kept up to date.

May use: `protocol`, `shardline.datasource.types`. Start at `tokens`, then `catalyst`, then
`strategy`.

Never: changes what a query means by rewriting its text. Spark's plans and expressions are the
truth; where a text is rewritten over changes, the two plans are compared, expression by expression.

    tokens, references, queries   Spark's tokens; names that a query reads; statements of `sql`
    catalyst, plan_tree           Spark's analyser, asked from Python; its plans as plain values
    strategy                      how a view is kept up to date, and why
    over_changes, compare_plans   a linear query over changes, and the proof that it means the same
    determinism, window_frames    what makes a result depend on more than its inputs
    problems, spark_errors        what is wrong with a text, and where
"""
