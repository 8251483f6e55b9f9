"""The main job: a year of flights arrives, and a runtime keeps a project of SQL up to date.

The project is `conf/demo`: files become sources, sources become views, a view becomes files again.
What runs is `shardline.app.coordinator.application`, as for any project; here is what a
demonstration needs on top.

Reading order:
    data        which data
    place       where everything is on this machine; one run at a time
    feed        daily files arrive
    flights     the project over these folders, made to run, and begun anew
    progress    how far everything is
    check       is it all true, asked of plain Spark over the raw files
    story       all of it in order, told to a newcomer
"""
