"""The two protocols between controllers and the runtime: values and pure functions, no Spark.

Reading order:
    objects      what can be asked for: sources, sinks, views, indexes, subscriptions
    compute      commands and responses of the compute protocol
    storage      the same of the storage protocol
    history      what a list of commands amounts to
    reconcile    what is to be done when a controller says anew what should be there
    codec        all of them as JSON, and back
"""
