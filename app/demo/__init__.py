"""The main job: a year of flights arrives as a stream, three queries keep shards of it up to date.

Reading order:
    data        which data, with which schemas
    place       where everything is on this machine; one run at a time
    feed        daily files arrive
    lake        the shards, as this job makes and reads them
    queries     what Spark does
    progress    how far everything is
    check       is it all true, asked of plain Spark over the raw files
    story       all of it in order, told to a newcomer
"""
