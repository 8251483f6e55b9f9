"""What a person sees on a terminal: tables, statuses, plans, and the verbs of the admin.

Owns the words and the layout; what is shown comes from others.

May use: everything but `demo`. Start at `status` or `admin/command`.

Never: starts a JVM for a command that can do without, or shows a value that it computed itself.

    terminal          where a job prints, also when Spark stands in between
    tables            reports of shards as text
    result_table      rows of a query as text
    status            every object with a verdict in words
    explain_plan      what would be done to a project's objects, and how views will be kept
    storage_options   `--option NAME=VALUE` of every job
    admin/            what the person on call asks of a location, and does to it
"""
