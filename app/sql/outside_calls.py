"""Refuses queries that run code which is no SQL: methods of Java, and commands of the machine.

A client's query may read what the project keeps, and no more. But `reflect` runs any method of any
class in the application, and TRANSFORM any command, with the application's rights: to ask would be
to own the machine, and the credentials of the store.

    frame = spark.sql(query)
    refuse_outside_calls(frame._jdf.queryExecution().analyzed())      before it is collected

The plan decides, not the text: whatever way is found to write such a call, this is what runs.

Invariants:
    Nothing of a plan is evaluated here. Nor has the analyzer evaluated such a call: it is not
    deterministic, and Spark evaluates no such expression without initialising it for its rows.
    Functions registered in the session are taken: whoever runs the application chose them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frames import children_of, kind_of, read_sequence

__all__ = ["refuse_outside_calls"]

_SCRIPT: Final = "ScriptTransformation"
_REFLECTION: Final = "CallMethodViaReflection"
"""The expression of `reflect` and `java_method`, and what `try_reflect` is replaced by."""


def refuse_outside_calls(plan: Any) -> None:
    """Refuse an analysed plan that would run code outside of SQL.

    Raises:
        InvalidUsage: `FUNCTION_REFUSED`: it has such a call, maybe in a subquery.
    """
    operators = [*_operators(plan)]
    if any(kind_of(operator) == _SCRIPT for operator in operators):
        raise _refusal("TRANSFORM runs a command on the machine of the application")
    # Expressions are many, and each is asked for through a socket: most queries need none of it.
    suspects = [operator for operator in operators if not operator.deterministic()]
    if any(kind_of(expression) == _REFLECTION for expression in _expressions(suspects)):
        raise _refusal("reflect() runs a method of Java in the application")


def _operators(plan: Any) -> Iterator[Any]:
    """All operators of a plan, those of its subqueries included."""
    ahead = [plan, *read_sequence(plan.subqueriesAll())]
    while ahead:
        operator = ahead.pop()
        yield operator
        ahead += children_of(operator)


def _expressions(operators: Iterable[Any]) -> Iterator[Any]:
    for operator in operators:
        ahead = [*read_sequence(operator.expressions())]
        while ahead:
            expression = ahead.pop()
            yield expression
            ahead += children_of(expression)


def _refusal(what: str) -> InvalidUsage:
    return InvalidUsage(
        f"{what}: queries must not",
        code="FUNCTION_REFUSED",
        hint="use functions of SQL, or register a function in the application's session",
    )
