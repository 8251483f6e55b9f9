"""Java classes are loaded once in a JVM, however many threads ask for one first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from shardline.datasource.spark_native import compiled_java

if TYPE_CHECKING:
    import pytest


class _Loaded:
    """A class of Java, of which each object says by which loading it was made."""

    def __init__(self, number: int) -> None:
        self.number = number

    def getConstructors(self) -> list[Any]:  # noqa: N802 - Java's name
        return [self]

    def newInstance(self, _arguments: object) -> int:  # noqa: N802 - Java's name
        return self.number


def test_two_threads_that_ask_first_get_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Py4J calls methods by a class's name: of two classes of one name, those of either fail."""
    loads: list[int] = []
    both = threading.Barrier(2)

    @lru_cache(maxsize=8)
    def load(_jvm: object, _name: str, _version: str) -> _Loaded:
        loads.append(len(loads))
        own = _Loaded(loads[-1])
        # Long enough for the other thread to come, which it does not if it has to wait.
        if not inside.is_set():
            inside.set()
            came.wait(0.2)
        return own

    inside, came = threading.Event(), threading.Event()
    monkeypatch.setattr(compiled_java, "_loaded", load)
    monkeypatch.setattr(compiled_java, "jvm_of", lambda _spark: "jvm")
    monkeypatch.setattr(compiled_java, "java_class", lambda _spark, _name: _Arguments)

    def ask() -> Any:
        both.wait(30)
        return compiled_java.java_object(_Spark(), "DriverStream")  # type: ignore[arg-type]

    with ThreadPoolExecutor(2) as pool:
        made = [future.result(30) for future in [pool.submit(ask), pool.submit(ask)]]

    assert loads == [0]
    assert made == [0, 0]


class _Spark:
    version = "4.3.0"


class _Arguments(list[Any]):
    def toArray(self) -> list[Any]:  # noqa: N802 - Java's name
        return self
