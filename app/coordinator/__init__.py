"""The coordinator turns a project into commands to the controllers, and chooses times for queries.

Owns what Materialize calls the adapter: it compares the objects of a project with those of the
runtime, passes the difference to the controllers, selects the time at which each object begins (its
as_of), and the time at which a query reads.

May use: `controller`, `project`, `runtime`, `sql`, `compute`, `protocol`; not `server`. Start at
`application`.

Never: starts or stops a streaming query. It decides what should run; controllers and the runtime's
lane make it so.

    application       a runtime, its controllers and a project, in one process
    desired_state     the objects of a project and those of the runtime, in one vocabulary
    object_creation   creates each object once its inputs have begun
    as_of_selection   the first time at which an object's output is right
    start_holds       keeps inputs readable until the objects that read them have begun
    oracle            the time at which a query reads
    reads             queries and subscriptions
    object_control, error_repairs, shard_actions   what a person asks for, beside a project
    change_steps      a change that fails may have been done in part
    project_comparison   a project's files as they are now, against what runs
"""
