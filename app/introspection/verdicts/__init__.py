"""A verdict says in words how an object is, why, and what to do: computed once, shown everywhere.

    situations(facts, now_ms) -> {name: Situation}     gather: what is known of each object
    judge(situations) -> {name: Judgement}              rules: pure, inputs before what reads them
    judge_facts(facts, now_ms) -> Judged                judged: both, once for all who ask
    summarize(judgements) -> Summary                    one sentence about the whole

The relation `verdicts`, the command `status`, the lines on the application's terminal, alerts and
pages show these words and judge nothing themselves: two judges would disagree on the night when it
matters. Kafka consumers have Burrow's evaluation of lag for a model, Materialize's console its
freshness page; neither says why, or what to do.

Owns the rules, their words, and the history of verdicts.

    situation   all that the verdict on one object depends on, as plain values: start here
    gather      facts become one situation for each object
    rules       judge situations: pure; the first rule that applies decides
    judged      judges all objects once for a moment, whoever asks
    trend       tells catching up from falling behind
    wording     writes spans of time, numbers and names
    noted       notes verdicts that have changed: their history, and since when each holds

May use: the facts, events and histories of `introspection`, `execution`, `protocol`, and the
durations of `settings`.

Never: asks Spark or a store for anything, or keeps anything between two calls.
"""
