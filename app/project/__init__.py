"""A project turns SQL files into descriptions of objects, checked by Spark before anything starts.

Owns the statements of a project, its checks as a whole, and the plan: the difference between a
project and the objects that run.

    Project.load(folder).check(spark) -> Resolved    descriptions, inputs first
    make_plan(wanted, running) -> Plan               the steps that `run` would take

    statements, clauses, variables   from text to objects
    definition_text                  from a description back to the text of a statement
    python_objects                   the same objects from Python
    names                            checks that need no Spark: names, inputs, cycles
    analyze, columns                 checks by Spark's analyzer; columns and strategies
    option_problems                  words for wrong options of sources and sinks
    sink_problems                    sinks whose targets cannot take their rows
    sink_places                      sinks that would get in the way of other objects
    project                          all of it, as one value
    identity                         the name of a project, from its `project.toml`
    origin                           where its texts are, to read them again
    plan                             the difference to what runs
    replacement, shortening          shards that cannot be kept; history that gets shorter
    dropping                         what a drop deletes for good
    permission                       refuses plans that lose something until they are agreed to

May use: `sql`, `protocol`, `settings`, `storage.formats` and the checks of storage and compute that
need no running object. Start at `project`, then `statements` and `analyze`.

Never: starts or changes anything that runs, or stops at the first problem. A query is never written
anew by a generator of SQL: names are replaced in the text, so Spark reads what the user wrote.
"""
