"""Subscriptions send every change of an object, in order, to one client (Materialize's SUBSCRIBE).

Owns the contract with the client, the window of batches that are not acknowledged, and the cutting
of changes into batches.

May use: `compute.results`, `execution`, `protocol`, `settings`,
`datasource`. Start at `subscription`, then `batches`.

Never: skips a change, or sends one twice within one connection; a client that comes back resumes at
a frontier. Keeps no changes in memory for a client that does not take them.

    subscription   follows an object for one client, and waits for its acknowledgements
    batches        cuts changes into batches of bounded size
"""
