"""A soak: real processes on one location, killed at random for as long as one likes.

    known       rows that are known in advance, and what a shard of them must hold
    child       a process that takes its task from stdin and tells what it does on stdout
    writer      a process that appends known rows
    keeper      a process that merges, collects and truncates
    session     a process with a SparkSession and two queries that copy the shard
    victims     finds the processes of all of these, and kills one
    measured    what the store and the processes take, and which bounds that breaks
    plan        what is to be done, and what came out
    rounds      the soak itself: starts all, kills, compares, measures

`jobs/soak.py` is the command. Nothing here is used by anything else.
"""
