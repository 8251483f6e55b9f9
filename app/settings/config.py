"""The configuration is one frozen tree, loaded from `conf/app.toml` and the command line.

A misspelt key that is ignored silently is found weeks later; so unknown keys and values that are
not allowed are errors at the start.

    settings = load(file, overrides)      overrides win over the file, and the file over defaults

Every key is explained where it is set, in `conf/app.toml`; the fields here say what code relies on.
Relative paths of the file count from the folder above the one it is in (the repository's root; the
working directory for the file of an installed package), those given on a command line from the
working directory.

Invariants:
    Nothing reads the file, or the environment, after start.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_type_hints

import msgspec
from msgspec import Meta
from typing_extensions import override

from shardline.app.settings.live import parse_positive_ms, parse_size_bytes
from shardline.datasource.errors import InvalidUsage, unknown_name
from shardline.installation import CONF, folder_of_paths

__all__ = [
    "DEFAULT_FILE",
    "FILE_ENCODING",
    "DemoSettings",
    "LogSettings",
    "RuntimeSettings",
    "Settings",
    "load",
    "local_folder",
]

DEFAULT_FILE = CONF / "app.toml"

FILE_ENCODING: Final = "utf-8-sig"
"""Of the files that people write: editors on Windows put a byte order mark in front, unseen."""

Tree = dict[str, Any]

_PORT_MAX: Final = (1 << 16) - 1


class Duration(str):
    """A time as people write it, `90s` or `5 min`, longer than 0."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Check the text.

        Raises:
            InvalidUsage: It is no duration.
        """
        parse_positive_ms(text)
        return super().__new__(cls, text)


class Size(str):
    """A number of bytes as people write it: `64m`, `1g`."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Check the text.

        Raises:
            InvalidUsage: It is no size.
        """
        parse_size_bytes(text)
        return super().__new__(cls, text)


class Address(str):
    """An address that a server listens on, `127.0.0.1:4200`; port 0 is any that is free."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Check the text.

        Raises:
            InvalidUsage: It is no address with a port.
        """
        host, _, port = text.rpartition(":")
        if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > _PORT_MAX:
            hint = f"write 127.0.0.1:4200, with a port up to {_PORT_MAX}"
            raise InvalidUsage(f"'{text}' is no address", code="INVALID_SETTING", hint=hint)
        return super().__new__(cls, text)

    @property
    def host(self) -> str:
        """Name or number, without the brackets of IPv6."""
        return self.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port; 0 for any that is free."""
        return int(self.rpartition(":")[2])


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    hidden: ClassVar[tuple[str, ...]] = ()
    """Fields that let somebody in, or may: no representation shows them."""

    @override
    def __repr__(self) -> str:
        shown = (name for name in self.__struct_fields__ if name not in self.hidden)
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__name__}({values})"


class DemoSettings(_Section, frozen=True):
    """Section `[demo]`: the main job.

    Attributes:
        data: Folder for everything that it writes on this machine.
        location: URL of the location; empty for `shards` inside `data`.
        days: Number of days of 2013 that arrive.
        days_per_second: Rate at which they arrive.
        lock_timeout_ms: How long to wait for an earlier run that is still ending.
    """

    data: Path = Path("data")
    location: str = ""
    days: Annotated[int, Meta(ge=1, le=365)] = 365
    days_per_second: Annotated[float, Meta(gt=0, le=1000)] = 16.0
    lock_timeout_ms: Annotated[int, Meta(ge=0, le=600_000)] = 30_000

    @property
    def url(self) -> str:
        """URL of the location."""
        return self.location or str(self.data / "shards")


class RuntimeSettings(_Section, frozen=True):
    """Section `[runtime]`: the unified runtime.

    Attributes:
        interval_ms: Distance of the times that sources give to data, and of their ticks.
        interval_max: The most that sources wait between two commits when views cannot follow.
        rest_interval_ms: Distance of the times that uppers move to while nothing happens.
        self_check_every: One step of a view in so many recomputes a key; 0 for none.
        retain_history: Retention of objects that set none themselves.
        hydration_concurrency: Dataflows that may hydrate at a time.
        hydration_patience: How long a dataflow that hydrates may keep others waiting.
        start_concurrency: Objects that are started at a time.
        restart_pause: Pause before an object that has failed is started again; doubles each time.
        restart_pause_max: The longest such pause.
        restart_healthy: An object that ran for so long starts again without its earlier failures.
        lease: How long a runtime counts as alive after its last heartbeat.
        controller_silence: How long a controller may be silent before it counts as gone.
        unified: True if compute and storage share one session.
        introspection: True if running objects are observed.
        maintenance: True if the application itself compacts and collects shards.
        listen: Address and port of the HTTP server; port 0 for the last one, or any that is free.
        token: Token of requests that change something; empty for a new one at each start.
        result_limit: Largest result of a query.
        query_timeout: How long a query waits for its answer.
        query_concurrency: Queries that are answered at a time.
        queries_waiting: Queries that may wait besides those.
        direct_read_limit: Most bytes of a shard that a query reads itself, without Spark.
        subscribe_batch_limit: Largest batch of a subscription.
        subscribe_patience: How long a subscription waits for a client that reads nothing.
        index_limit: Most memory of one index.
        index_history: How far back an index can answer.
    """

    hidden: ClassVar[tuple[str, ...]] = ("token",)

    interval_ms: Annotated[int, Meta(ge=100, le=60_000)] = 1000
    interval_max: Duration = Duration("10s")
    rest_interval_ms: Annotated[int, Meta(ge=100, le=5000)] = 5000
    self_check_every: Annotated[int, Meta(ge=0, le=1_000_000)] = 1000
    retain_history: Duration = Duration("5 min")
    hydration_concurrency: Annotated[int, Meta(ge=1, le=64)] = 4
    hydration_patience: Duration = Duration("60s")
    start_concurrency: Annotated[int, Meta(ge=1, le=64)] = 4
    restart_pause: Duration = Duration("1s")
    restart_pause_max: Duration = Duration("30s")
    restart_healthy: Duration = Duration("60s")
    lease: Duration = Duration("15s")
    controller_silence: Duration = Duration("15s")
    unified: bool = True
    introspection: bool = True
    maintenance: bool = True
    listen: Address = Address("127.0.0.1:0")
    token: str = ""
    result_limit: Size = Size("64m")
    query_timeout: Duration = Duration("60s")
    query_concurrency: Annotated[int, Meta(ge=1, le=64)] = 4
    queries_waiting: Annotated[int, Meta(ge=1, le=10_000)] = 100
    direct_read_limit: Size = Size("8m")
    subscribe_batch_limit: Size = Size("64m")
    subscribe_patience: Duration = Duration("60s")
    index_limit: Size = Size("512m")
    index_history: Duration = Duration("60s")


class LogSettings(_Section, frozen=True):
    """Section `[log]`: JSON lines in a file.

    Attributes:
        level: Least level that is written.
        file: The file; empty for `log.jsonl` in the job's own folder.
        max_size: Size at which the file is renamed; so it is when a day is over.
        files: How many renamed files are kept.
    """

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    file: str = ""
    max_size: Size = Size("16m")
    files: Annotated[int, Meta(ge=1, le=1000)] = 10


class Settings(_Section, frozen=True):
    """The whole tree.

    Attributes:
        demo: The main job.
        runtime: The unified runtime.
        log: The log.
        storage: Storage options such as `s3.endpoint`, passed to every use of the location.
    """

    hidden: ClassVar[tuple[str, ...]] = ("storage",)

    demo: DemoSettings = DemoSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    log: LogSettings = LogSettings()
    storage: dict[str, str] = {}


def load(
    file: Path | None = None, overrides: Mapping[str, Mapping[str, Any]] | None = None
) -> Settings:
    """Load and validate the settings.

    Args:
        file: A TOML file; None for `conf/app.toml`, or the defaults where there is none.
        overrides: By section and key, as they were typed on a command line; win over the file.

    Raises:
        InvalidUsage: The file cannot be read, a key is unknown, or a value is not allowed; the
            error names the key, and the nearest known one.
    """
    tree = _read(file)
    given = {section: dict(values) for section, values in (overrides or {}).items()}
    _anchor_paths(given, Path.cwd())
    for section, values in given.items():
        own = tree.setdefault(section, {})
        # What is no section stays as it is, and is refused below by its name.
        if isinstance(own, dict):
            own.update(values)
    _check_names(tree, Settings, "")
    _check_storage(tree)
    try:
        return msgspec.convert(tree, Settings, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise _refused(tree, error) from None


def _decode(kind: type, value: object) -> object:
    """A value of a type that msgspec does not know.

    Raises:
        ValueError: It is none; with what to write instead.
    """
    if not isinstance(value, str):
        # As msgspec says it of its own types.
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")  # noqa: TRY004
    try:
        return kind(value)
    except InvalidUsage as error:
        raise ValueError(error.hint) from None


def _read(file: Path | None) -> Tree:
    path = file or DEFAULT_FILE
    if file is None and not path.is_file():
        return {}
    try:
        tree = tomllib.loads(path.read_text(encoding=FILE_ENCODING))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidUsage(
            f"the settings '{path}' cannot be read: {error}",
            code="SETTINGS_UNREADABLE",
            hint="name a TOML file with --config, or leave it out",
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidUsage(
            f"the settings '{path}' are not TOML: {error}",
            code="SETTINGS_UNREADABLE",
            hint="strings need quotes, keys with dots too",
        ) from error
    if isinstance(tree.get("demo"), dict):
        tree["demo"].setdefault("data", "data")
    _anchor_paths(tree, folder_of_paths(path))
    return tree


def local_folder(text: str, root: Path | None = None) -> Path:
    """The folder of this machine that `text` names, counted from `root` (the working directory).

    Raises:
        InvalidUsage: `NOT_A_FOLDER`: it is a URL, and there would be a folder `s3:` with the data
            that were to be in the bucket.
    """
    if "://" in text:
        raise InvalidUsage(
            f"'{text}' is a URL, and the application's own data are in a folder of this machine",
            code="NOT_A_FOLDER",
            hint="name the place of the shards with --location (demo.location), and a folder for "
            "all else with --data (demo.data)",
        )
    return (root or Path.cwd()) / text


def _anchor_paths(tree: Tree, root: Path) -> None:
    """Make relative paths absolute, so that they do not depend on the working directory."""
    for (section, name), anchored in _PATHS.items():
        values = tree.get(section)
        if isinstance(values, dict) and isinstance(values.get(name), str):
            values[name] = anchored(values[name], root)


def _anchored_location(text: str, root: Path) -> str:
    return text if _URL.match(text) else _anchored_file(text, root)


def _anchored_file(text: str, root: Path) -> str:
    # Empty, it is no path: it stands for a place inside of the data folder.
    return str(root / text) if text.strip() else text


_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|file:", re.IGNORECASE)
"""The beginning of a location that is no path, as `shardline.datasource.stores.open` reads it."""

_PATHS: Final[Mapping[tuple[str, str], Callable[[str, Path], str]]] = {
    ("demo", "data"): lambda text, root: str(local_folder(text, root)),
    ("demo", "location"): _anchored_location,
    ("log", "file"): _anchored_file,
}
"""The settings that are paths, or may be, and what makes each absolute."""


def _check_names(tree: Mapping[str, Any], section: type[msgspec.Struct], prefix: str) -> None:
    kinds = get_type_hints(section)
    for name, value in tree.items():
        if name not in section.__struct_fields__:
            known = [prefix + field for field in section.__struct_fields__]
            raise unknown_name("setting", prefix + name, known)
        inner = kinds[name]
        if isinstance(inner, type) and issubclass(inner, _Section) and isinstance(value, dict):
            _check_names(value, inner, f"{prefix}{name}.")


def _check_storage(tree: Tree) -> None:
    """Refuse an option of the store that is no text: msgspec would not say which one it is."""
    storage = tree.get("storage")
    for name, value in (storage if isinstance(storage, dict) else {}).items():
        if not isinstance(value, str):
            why = "expected `str`; put names with dots in quotes"
            raise _invalid(f"storage.{name}", value, why)


def _refused(tree: Tree, error: msgspec.ValidationError) -> InvalidUsage:
    """The error of a value that is not allowed, from msgspec's: `… - at `$.demo.days``."""
    said = re.fullmatch(r"(?P<why>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?", str(error), re.DOTALL)
    assert said is not None, error
    name = said["path"] or ""
    value: Any = tree
    for step in name.split("."):
        value = value.get(step) if isinstance(value, dict) else value
    return _invalid(name, value, said["why"][:1].lower() + said["why"][1:])


def _invalid(name: str, value: object, why: str) -> InvalidUsage:
    return InvalidUsage(
        f"setting '{name}' is {value!r}", code="INVALID_SETTING", hint=f"{why}; see conf/app.toml"
    )
