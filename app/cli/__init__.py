"""The command line shows tables, statuses and plans to people, and carries out the admin's verbs.

Owns the words and the layout of all output; the values come from other rooms.

    terminal             the console of a job, also below `spark-submit`
    stderr_capture       sends to the log what Spark and libraries write to stderr
    start_progress       the step of a start that is under way, and its time so far
    application_address  finds the running application from the arguments all commands share
    storage_options      the location, and `--option NAME=VALUE`, of every job
    tables               reports of shards as text
    noted_table          a table with lines of full width below its rows, within a height
    result_table         rows of a query as text
    subscription_lines   changes of an object, a line for each update
    status               every object with a verdict in words
    verdict_lines        a line when an object's verdict has changed
    bad_rows             bad rows as lines of text
    explain_plan         a project's plan: steps, affected objects, strategies of views
    explain_drop         everything that a drop deletes
    view_plan_table      the operators of a view as a tree, and how each is kept
    admin/               inspection and repair of a location, for the person on call

May use: everything but `demo`. Start reading at `status` or `admin.command`.

Never: starts a JVM for a command that does not need one, or shows a value that it computed itself.
"""
