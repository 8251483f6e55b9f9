"""A verdict says in words how an object is, why, and what to do: computed once, shown everywhere.

    situations(facts, now_ms) -> {name: Situation}     gather: what is known of each object
    judge(situations) -> {name: Judgement}              rules: pure, inputs before what reads them
    judge_facts(facts, now_ms) -> Judged                judged: both, once for all who ask
    summarize(judgements) -> Summary                    one sentence about the whole

The relation `verdicts`, the command `status`, the lines on the application's terminal, alerts and
pages show these words and judge nothing themselves: two judges would disagree on the night when it
matters. Kafka consumers have Burrow's evaluation of lag for a model, Materialize's console its
freshness page; neither says why, or what to do.

Start reading at `situation`, then `rules`. `trend` tells catching up from falling behind, `wording`
writes spans of time and names.

Never: asks Spark or a store for anything, or keeps anything between two calls.
"""
