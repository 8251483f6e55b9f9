"""The settings of an application: read once, validated, refused if not understood.

Owns the tree of settings (`conf/app.toml` and the command line), the units of their values, and the
form of those that a running runtime can apply.

May use: `datasource.errors`, and the parsers of durations and sizes of
`datasource.option_parser`. Start at `config`.

Never: reads the environment or a file after start, or guesses what an unknown key meant.

    config      the tree, one frozen value
    durations   durations in text: `90s`, `5 min`, `1h`
    live        settings that can change while a runtime runs
"""
