"""Consolidates, sorts and merges updates, which are Arrow tables.

Owns the three columns of an update (the row, its time `_ts`, its `_diff`), the sort order of parts,
and the merge of sorted runs in bounded memory.

May use: `types`. Start at `updates`.

Never: reads or writes anything. Every function here is pure: Arrow in, Arrow out.

    updates      consolidation, advancing times to a since, expanding copies
    sorting      sorts by many columns, paying only for those that decide
    merge_runs   sorted runs into one, consolidated on the way
"""
