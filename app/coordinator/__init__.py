"""The coordinator turns a project into commands to the controllers, and chooses times for queries.

Owns what Materialize calls the adapter: it compares the objects of a project with those of the
runtime, passes the difference to the controllers, selects the time at which each object begins (its
as_of), and the time at which a query reads.

May use: `controller`, `project`, `runtime`, `sql`, `compute`, `protocol`; not `server`. Start at
`application`.

Never: starts or stops a streaming query. It decides what should run; controllers and the runtime's
lane make it so.

    application         a runtime, its controllers and a project, in one process
    planning            plans a project for a location: its objects, against those that run
    existing_shards     reads what a plan needs to know of shards that are there
    project_comparison  a project's files as they are now, against what runs
    desired_state       the objects of a project and those of the runtime, in one vocabulary
    objects             creates, changes and drops the objects of a project, each when it can be
    object_creation     creates each object once its inputs have begun
    replacements        objects that come after others of their names, once those are gone
    as_of_selection     the first time at which an object's output is right
    start_holds         keeps inputs readable until the objects that read them have begun
    left_behind         ends what objects have left that are gone, or of another kind now
    change_steps        the error of a change that may have been done in part
    wakes               wakes the coordinator when what it waits for may have happened
    oracle              the time at which a query reads
    reads               queries and subscriptions
    view_explanation    plans of views, and what `EXPLAIN VIEW` shows of one that runs
    operator_commands   records a person's commands in the lane's order
    object_control      pauses, resumes and restarts single objects
    error_repairs       shows bad rows, and has errors of sources taken away
    offline_repairs     the same where no application runs
    shard_actions       upkeep of shards for a person in front of a running application
"""
