"""Types of columns, and the rules by which a shard's schema may change.

Owns Spark's types as values (parsed without Spark), the Arrow types that hold them, a shard's
schema and its evolution, and the statistics of a part's columns.

May use: `errors`, `frontier`, `ids`, `settings`. Start at `schema`, then `spark_types`.

Never: touches a row's place in time, a store, or Spark itself. Two values that mean the same to
Spark mean the same here, or a method refuses; nothing here guesses.

    spark_types       Spark's data types, parsed from the JSON text that Spark writes
    arrow_to_spark    the Spark type of Arrow data that did not come from Spark
    schema            a shard's schema, and the Arrow schema that follows from it
    schema_evolution  which changes of a schema a shard accepts
    cast_to_schema    Arrow data brought under a schema, without loss or with an error
    nested_arrays     what pyarrow lacks for lists, maps and structs
    python_values     values of Arrow as values of Python, also those that Python lacks
    row_keys          values as flat columns that Arrow can compare and sort
    stats             bounds and counts of a part's columns
"""
