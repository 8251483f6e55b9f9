"""Loads the few Java classes of this package into the driver's JVM, without a jar.

Spark's own compiler of generated code (Janino) compiles them. That takes half a second of a JVM
that has just started, so what it made is kept (`kept_files.py`), and found by the source, the
version of Spark and that of Java. Where nothing can be kept each JVM compiles.

Invariants:
    A class is loaded once in a JVM: py4j finds methods by a class's name, and would call those of
    an older class of the same name on an object of a newer one.
    Kept classes are used only for the very source that they were made of. If they cannot be loaded
    the source is compiled, as if nothing had been kept.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from shardline.datasource.java_names import class_in, java_class, jvm_of
from shardline.datasource.spark_native.kept_files import kept_file, read_kept, store_kept

__all__ = ["java_object", "shared_object"]

_PACKAGE: Final = "shardline_jvm"
_JANINO: Final = "org.codehaus.janino.SimpleCompiler"
_LOADER: Final = "org.codehaus.commons.compiler.util.reflect.ByteArrayClassLoader"


def java_object(spark: SparkSession, name: str, *given: object) -> Any:
    """A new object of the class in `<name>.java` of this package.

    The class is known to the driver only.

    Args:
        spark: The session whose driver loads it.
        name: Name of the class, which has one constructor.
        given: What that takes: objects of the JVM, text, numbers, dictionaries; and Python objects
            that implement Java interfaces.
    """
    if any(hasattr(type(one), "Java") for one in given):
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - no public door
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    # A list: the elements of an array of py4j cannot be Python objects.
    arguments = java_class(spark, "java.util.ArrayList")()
    for one in given:
        arguments.add(one)
    with _loading:
        made = _loaded(jvm_of(spark), name, spark.version)
    return made.newInstance(arguments.toArray())


@cache
def shared_object(client: Any, name: str) -> Any:
    """The one object of a class that takes the gateway: there it finds what Python has names for.

    Args:
        client: That of py4j, which stays with the process, as does its JVM.
        name: Name of the class.
    """
    spark = SparkSession.active()
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - no public door
    assert gateway._gateway_client is client, name  # noqa: SLF001 - as above
    return java_object(spark, name, gateway.java_gateway_server.getGateway())


_loading: Final = threading.Lock()
"""A cache calls its function side by side for two threads that ask for the same first: each would
load a class of its own."""


@cache
def _loaded(jvm: Any, name: str, version: str) -> Any:
    """The constructor of a class."""
    return _class(jvm, name, version).getConstructors()[0]


def _class(jvm: Any, name: str, version: str) -> Any:
    source = files(__package__).joinpath(f"{name}.java").read_bytes()
    java = class_in(jvm, "java.lang.System").getProperty("java.specification.version")
    made_of = hashlib.sha256(b"\n".join([source, version.encode(), java.encode()])).hexdigest()
    kept = kept_file(f"{name}.{made_of[:32]}.classes")
    parent = class_in(jvm, "java.lang.Thread").currentThread().getContextClassLoader()
    if (text := read_kept(kept)) is not None:
        codes = {one: base64.b64decode(code) for one, code in json.loads(text).items()}
        with contextlib.suppress(Py4JError):
            return _defined(jvm, parent, f"{_PACKAGE}.{name}", codes)
    compiler = class_in(jvm, _JANINO)()
    compiler.setParentClassLoader(parent)
    compiler.cook(source.decode())
    found = compiler.getClassLoader().loadClass(f"{_PACKAGE}.{name}")
    made = compiler.getBytecodes()
    texts = {one: base64.b64encode(made.get(one)).decode() for one in made.keySet().toArray()}
    store_kept(kept, json.dumps(texts).encode())
    return found


def _defined(jvm: Any, parent: Any, name: str, classes: Mapping[str, bytes]) -> Any:
    given = class_in(jvm, "java.util.HashMap")()
    for one, code in classes.items():
        given.put(one, code)
    found = class_in(jvm, _LOADER)(given, parent).loadClass(name)
    found.getConstructors()  # links the class: what does not fit is an error here
    return found
