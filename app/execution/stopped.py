"""Ends the work of an incarnation that was stopped, wherever in a micro-batch it is.

Stopping an object is no failure: nothing is to be restarted, and nothing reported. So it is no
`ShardError`, which would be both. Whoever asks "may I still?" in the middle of a step raises it,
and the function that Spark calls catches it.
"""

__all__ = ["Stopped"]


class Stopped(Exception):
    """The incarnation was stopped while it worked; what it has not appended is not appended."""
