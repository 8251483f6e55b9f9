"""What runs, how far it is and what is wrong with it: one sink, and relations of what it knows.

Reading order:
    events                      what the sink is told: immutable values
    operators                   a description as a plan of named operators
    facts, apply                what is known, and how an event changes it
    relation, structure, movement, progress, health, system, registry
                                relations: columns, meaning, and rows computed from the facts
    inbox, listener, sink       from a callback of Spark to the facts
    history, poll               what survives a restart; what nobody reports
    store                       the front door: `relation(name) -> pa.Table`
    live                        `SELECT … FROM introspection.<name>` in the session
    status                      objects and a verdict in words, for a terminal

Nothing here starts, stops or changes anything that runs.
"""
