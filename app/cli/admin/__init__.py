"""The admin inspects and repairs the shards of a location, for the person on call.

Owns the verbs of `admin`, from the words of the command line to their exit status.

    command     the command line: verbs, options, exit statuses: start here
    plan_views  the plans of verbs that change something (`shardline.app.admin`), as text
    views       what is found, as text
    usages      the use of bytes, as text

May use `datasource` in all its rooms: it is a tool for shards, with or without an application.

Never: writes, deletes or leases anything without `--commit`.
"""
