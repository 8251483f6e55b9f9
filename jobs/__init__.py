"""The jobs are the programs of the package: each parses its command line and returns a status.

Owns command lines, exit statuses, and the one place where an error becomes a sentence on stderr;
all work is done by `app` and `datasource`.

    demo        the flights of a year as a stream: the job without a name
    run         run or plan a project
    ask         sql, subscribe, status, set, drop: questions to a running application
    operate     pause, resume, restart, mend: single objects of a running application
    show        look into a location
    admin       look after a location: usage, fsck, readers, maintenance, retention, drops
    maintain    maintenance of a location, round after round
    compact     large merges by Spark
    copy_packages, train_class_archive    for `spark-submit.sh` alone; in no wheel

May use: every room.

Never: imports Spark in a job that does not need it, or before its arguments were checked.
"""

if __name__ != "shardline.jobs":
    # A second name would make a second copy of every class, and neither `except` nor `isinstance`
    # with a class of the first would match it.
    raise ImportError(f"'{__name__}' is part of Shardline: import it as 'shardline.jobs'")
