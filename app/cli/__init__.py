"""The command line shows tables, statuses and plans to people, and carries out the admin's verbs.

Owns the words and the layout of all output; the values come from other rooms.

    terminal          the console of a job, also below `spark-submit`
    tables            reports of shards as text
    result_table      rows of a query as text
    status            every object with a verdict in words
    explain_plan      a project's plan: steps, affected objects, strategies of views
    storage_options   `--option NAME=VALUE` of every job
    admin/            inspection and repair of a location, for the person on call

May use: everything but `demo`. Start reading at `status` or `admin.command`.

Never: starts a JVM for a command that does not need one, or shows a value that it computed itself.
"""
