"""Conditions on rows, for callers that plan reads themselves.

The public face of the room `filters`: SQL text is parsed as Spark parses it, bound to a schema, and
used to leave out parts and rows. A text that is not understood is refused before anything is read
(`UnsupportedSql`): a filter that was applied wrongly would lose rows.

    Where, Condition, bind_tree     a text; its tree, bound to a schema
    parse_sql, kind_of_node         the tree itself
    And, Compare, In, Predicate     the pieces of a bound condition
    Pruner                          leaves out the parts of a plan that cannot have matching rows
"""

from shardline.datasource.filters.parser import Condition, Where, bind_tree
from shardline.datasource.filters.predicates import And, Compare, In, Predicate
from shardline.datasource.filters.sql_tree import UnsupportedSql, kind_of_node, parse_sql
from shardline.datasource.parts.prune import Pruner

__all__ = [
    "And",
    "Compare",
    "Condition",
    "In",
    "Predicate",
    "Pruner",
    "UnsupportedSql",
    "Where",
    "bind_tree",
    "kind_of_node",
    "parse_sql",
]
