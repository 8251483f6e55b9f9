"""How a view's output follows its inputs: which step is next, and what makes it.

    steps     the next step, from how far the output is and when the inputs change; pure
    contents  what a small output holds, in memory
    changes   when the inputs of a view change, from the states of their shards
    linear    whether the query over changes instead of contents is right in this session

Every view can be kept by recomputation: the query anew at each time at which an input changes, and
of its result what differs from the output. A linear view takes the query over the changes alone,
whose cost is that of the change. Both give the same contents at every time, so that a view may go
from one to the other at any time, and does when the better one is not possible.
"""
