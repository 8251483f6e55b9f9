"""Subscriptions: every change of an object, in order, to one client.

May use: `compute.shard_follower`, `datasource`. Start at `subscription`.

Never: skips a change or says it twice within one connection; a client that comes back resumes at a
frontier.
"""
