"""Settings of an application: read once, validated, refused if not understood.

Owns the tree of settings (`conf/app.toml` and the command line), the units they are written in, and
which values a running runtime can take over.

May use: `shardline.datasource.errors`. Start at `config`.

Never: reads the environment or a file after start, or guesses what an unknown key meant.

    config      the tree, one frozen value
    durations   `90s`, `5m`, `1h`
    live        settings that change while a runtime runs
"""
