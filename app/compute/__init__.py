"""The compute side of the runtime: views, indexes, subscriptions and peeks.

A view, from the inside out:

    maintain/                      which step is next, when inputs change, queries over changes
    evaluate, correction, errors   a query over frames, a difference, an error that is data
    view_sink                      the output and its errors, written as one
    view                           the steps, taken
    dataflow, constant             a streaming query that drives them; a view of nothing
    advancer, holds                what idles and what is held

`render` starts any dataflow. Peeks, subscriptions and indexes are modules of their own beside them.
"""
