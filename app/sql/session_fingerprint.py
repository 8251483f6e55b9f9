"""A session fingerprint stands for all that decides the meaning of a query beside text and inputs.

Spark's analyzer is asked some two hundred things about each view, each by a call to the JVM: beside
three hundred objects that run, the check of a project took minutes, though hardly ever anything was
changed. With equal texts, equal columns of the inputs and equal fingerprints an analysis that was
made before is right again.

    SessionFingerprint(spark).of("SELECT sum(n) FROM t")     "5f1c…"
    SessionFingerprint(spark).of("SELECT mine(n) FROM t")    None: `mine` may be replaced

Invariants:
    There is one only where nothing is left that could mean something else: settings are in it, and
    all functions are Spark's own. A function of a user can be replaced by another one of the same
    name, which nothing would show. Variables are not in the sessions that views run in.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from sqlglot import TokenType

from shardline.app.sql.tokens import tokens_of
from shardline.datasource.frames import settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SessionFingerprint", "calls_only"]

_WORD: Final = re.compile(r"\w")
"""In the text of a token that may be a name; signs have none."""

_BUILT_IN: Final = "system.builtin."

_KEYWORDS: Final = frozenset(
    {
        *("all", "and", "any", "as", "between", "by", "case", "cast", "distinct", "else"),
        *("except", "exists", "filter", "from", "having", "in", "intersect", "join", "lateral"),
        *("limit", "minus", "not", "on", "or", "over", "select", "sets", "some", "table"),
        *("then", "try_cast", "union", "using", "values", "varchar", "when", "where"),
        *("group by", "grouping sets", "order by", "partition by"),
    }
)
"""Words of the grammar behind which a parenthesis may stand, and which are no functions.

A word that is missing here costs an analysis, and nothing else."""


class SessionFingerprint:
    """The fingerprint of a session as it was when this was made."""

    def __init__(self, spark: SparkSession) -> None:
        """Read settings and functions: a few calls to the JVM, however many queries there are."""
        session: Any = spark._jsparkSession  # noqa: SLF001 - the analyzer is on that side
        state = session.sessionState()
        settings = json.dumps(sorted(settings_of(spark).items()))
        # Settings may have passwords of stores.
        self._settings = hashlib.sha256(settings.encode()).hexdigest()
        # Which function a name means then depends on a path that is no setting (`SET PATH`).
        self._is_undecided = spark.conf.get("spark.sql.path.enabled", "false") == "true" or bool(
            spark.conf.get("spark.sql.defaultPath", "")
        )
        names = [
            str(name)
            for registry in (state.functionRegistry(), state.tableFunctionRegistry())
            # One call for all: a sequence of Scala is read by one for each of its elements.
            for name in registry.listFunction().mkString("\n").split("\n")
        ]
        own = {name.removeprefix(_BUILT_IN) for name in names if name.startswith(_BUILT_IN)}
        others = {name.rpartition(".")[2] for name in names if not name.startswith(_BUILT_IN)}
        # A setting decides which of two functions of a name wins.
        self._functions = frozenset(own - others)
        self._others = frozenset(others)

    def of(self, text: str) -> str | None:
        """The fingerprint for a query; None if it does not decide what the query means.

        Args:
            text: The query, as the user wrote it; Spark has accepted it, or will be asked again.
        """
        if self._is_undecided or not calls_only(text, self._functions, self._others):
            return None
        return self._settings


def calls_only(text: str, functions: AbstractSet[str], others: AbstractSet[str]) -> bool:
    """True if a query calls none but these functions.

    Args:
        text: The query.
        functions: Names of functions in lower case.
        others: Names of functions that it must not call, though they are named like a keyword.
    """
    before = TokenType.SPACE
    for token, behind in pairwise(tokens_of(text)):
        if behind.token_type is TokenType.L_PAREN:
            name = token.text.lower()
            is_quoted = token.token_type is TokenType.IDENTIFIER
            is_known = name in functions or (name in _KEYWORDS and not is_quoted)
            # Behind a dot it is a function that a catalog keeps. A sign is none; a name may begin
            # with a digit.
            is_foreign = name in others or before is TokenType.DOT or not is_known
            if is_foreign and (is_quoted or _WORD.search(name)):
                return False
        before = token.token_type
    return True
