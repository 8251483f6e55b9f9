"""The controllers hold the desired objects, and keep the runtime in agreement with them.

Owns both controllers of Materialize, compute and storage: the desired objects, the holds that their
starts need, and the connection to the runtime. A controller may be started, killed and replaced
while everything runs on: it sends the complete desired state at each connection, and the runtime
reconciles.

May use: `transport`, `protocol`, `datasource`. Start at `link`, then `storage`, the simpler one.

Never: touches Spark, or relies on a command having arrived: there is no acknowledgement.

    link            one connection to the runtime, made again whenever it is lost
    controller      what both controllers have in common
    storage         sources and sinks
    compute         views, indexes, peeks and subscriptions
    subscription    one subscription for its reader, over lost connections
"""
