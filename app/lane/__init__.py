"""The lane: one durable order of everything that starts, changes or ends what runs.

Owns the order of a location's commands, the allocation of ids, and the process that holds the
lane: the internal command sequencer of Materialize's storage worker, for both kinds of objects, and
durable. Without it two runtimes could run one object, and a replay after a crash could give an
object another id than the one its checkpoint is filed under.

May use: `protocol`, `settings`, `execution`, `datasource`. Start at `commands`, then `state`.

Never: knows what an object computes. Renderers are handed in; nothing but the lane calls them.

    commands         the commands, and a command with its position: a record
    command_words    sentences that say for people what a command asks for
    state            the pure fold of all records: ids, descriptions, epochs
    process_state    what runs in this process, and which effects are due; pure as well
    effects          pools of threads for what takes long: rendering, stopping
    inbox            commands, completions and reports that the lane has not taken yet
    refusals         the errors of commands that have no place in the order
    holder           the process that holds the lane, and its heartbeat
    order_protocol   what the lane needs of a durable order: the seam for simulations
    log              the order in a shard of the location; the fence
    shared_poll      one look at the store for all threads that ask at the same time
    current_epochs   which incarnation's reports a controller is to see
    settings         bounds and pauses
    lane             one thread that ties them together
"""
