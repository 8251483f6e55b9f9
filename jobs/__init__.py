"""Programs: each parses its command line, calls the application, and returns a status."""

if __name__ != "shardline.jobs":
    # A second name would make a second copy of every class, which no `except` and no `isinstance`
    # of the first would know.
    raise ImportError(f"'{__name__}' is part of Shardline: import it as 'shardline.jobs'")
