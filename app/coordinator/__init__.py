"""The coordinator: a project's objects become what a runtime keeps, and queries get their times.

Owns what Materialize calls the adapter: it compares what a project wants with what there is, tells
the controllers what is missing, selects the time at which each object begins (its as_of), and the
time at which a query reads.

May use: `controller`, `project`, `runtime`, `sql`, `server` not. Start at `application`.

Never: starts or stops a streaming query. It says what should be; controllers and the runtime's lane
make it so.

    application       a runtime, its controllers and a project, in one process
    desired_state     what a project wants and what there is, in the same words
    object_creation   each object is created once its inputs have begun
    as_of_selection   the first time at which an object's output is right
    start_holds       inputs stay readable until the objects that read them have begun
    oracle            at which time a query reads
    reads             what can be asked: a query once, an object's changes
"""
