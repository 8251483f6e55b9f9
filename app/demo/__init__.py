"""The demo runs a project over a year of flights, and checks its views against plain Spark.

The project is `conf/demo`: files become sources, sources become views, a view becomes files again.
It runs in `shardline.app.coordinator.application`, as any project does.

Owns what a demonstration needs besides: data, a feed, a narrator and a check.

    story       the whole demo in order, explained to a newcomer: start here
    data        the data, unpacked from a package
    place       its folders on this machine; one run at a time
    feed        daily files that arrive
    flights     the project over these folders, started and started over
    progress    progress of the feed and the objects
    check       comparison of all shards with plain Spark over the raw files

May use: all other rooms, as a user of the package would; nothing uses this one but its job.

Never: reaches into a runtime. What it shows, any client can ask for.
"""
