"""The rules of prose and shape that no linter knows, checked over every file of the repository."""

from __future__ import annotations

import ast
import builtins
import gc
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.tree import ROOT

MODULE_LINES: Final = 600
"""A longer module is more than a reader keeps in mind: two of them, or one with a reason."""

MODULE_LINES_MAX: Final = 800
"""No reason is good enough for a module that is longer than this."""

LONG_MODULES: Final = {
    "tests/test_tidy.py": "its rules look at the same syntax trees, which are parsed once",
}
"""Modules between the two limits, and why each is better read in one piece than in two."""

FUNCTION_LINES_MAX: Final = 70

PACKAGES: Final = ("app", "datasource", "jobs")
TEXT_SUFFIXES: Final = frozenset(
    {".css", ".html", ".js", ".json", ".lock", ".md", ".properties", ".py", ".sh", ".sql", ".toml"}
    | {".conf", ".td", ""}
)
SKIPPED: Final = frozenset({"__pycache__", "data", "dist", "node_modules", "vendor"})


@cache
def tracked(*folders: str) -> list[Path]:
    """Every text file of the repository below `folders` (all of it without any)."""
    starts = [ROOT / folder for folder in folders] or [ROOT]
    found = (path for start in starts for path in files_of_ours(start))
    return sorted(path for path in found if path.suffix in TEXT_SUFFIXES)


def files_of_ours(start: Path) -> Iterator[Path]:
    """All files below a folder that no tool made; environments have more than all else together."""
    for folder, folders, names in os.walk(start):
        # What is not in the list is not walked.
        folders[:] = [f for f in folders if f not in SKIPPED and (f[0] != "." or f == ".ci")]
        yield from (Path(folder, name) for name in names)


def modules(*folders: str) -> list[Path]:
    """Every Python file below `folders`."""
    return [p for p in tracked(*folders) if p.suffix == ".py"]


def product() -> list[Path]:
    """Every Python file that is installed."""
    return modules(*PACKAGES, "src")


def name_of(path: Path) -> str:
    """The name of a file as a reader says it."""
    return path.relative_to(ROOT).as_posix()


def dotted(path: Path) -> str:
    """The name of a module as an import says it."""
    name = name_of(path).removesuffix(".py").removesuffix("/__init__")
    if name.startswith(PACKAGES):
        name = f"shardline/{name}"
    return name.removeprefix("src/").replace("/", ".")


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@pytest.fixture(scope="module", autouse=True)
def _uncollected_trees() -> Iterator[None]:
    """Let no collection of garbage go through what is parsed: it took two thirds of the time.

    Nor through what later tests would find of it; it has no circles, and goes when it is let go.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    yield
    for kept in (tree_of, doc_nodes, words_of):
        kept.cache_clear()
    if was_enabled:
        gc.enable()


def statements_of(node: ast.AST) -> Iterator[ast.AST]:
    """All below `node` but what is inside of expressions, which is most of a tree."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements_of(child)


OFFERED: Final = frozenset(
    {
        "shardline.app.transport.websocket_client",
        "shardline.app.testing",
        "shardline.datasource.stores.faulty",
    }
)
"""Modules for others: those who test their own views and dataflows, and controllers elsewhere.
Nothing of ours imports them outside tests."""

FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_modules_are_short() -> None:
    """No module is longer than a reader keeps in mind, but those that say why."""
    lengths = {name_of(p): len(p.read_bytes().splitlines()) for p in modules()}
    long = {name: n for name, n in lengths.items() if n > MODULE_LINES}
    assert {name: n for name, n in long.items() if name not in LONG_MODULES} == {}
    assert {name: n for name, n in long.items() if n > MODULE_LINES_MAX} == {}
    assert LONG_MODULES.keys() - long.keys() == set(), "these need no reason any more"


def test_functions_are_short() -> None:
    """No function is longer than a screen, its docstring apart."""
    long = {}
    for path in modules():
        for node in statements_of(tree_of(path)):
            if isinstance(node, FUNCTIONS) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                prose = (ast.get_docstring(node, clean=False) or "").count("\n") + 1
                if lines - prose > FUNCTION_LINES_MAX:
                    long[f"{name_of(path)}:{node.name}"] = lines - prose
    assert long == {}


def test_every_module_says_what_it_is() -> None:
    """Every module, of tests too, starts with a docstring; an empty `__init__` needs none."""
    silent = [name_of(p) for p in modules() if p.read_text().strip() and not doc_of(p)]
    assert silent == []


def test_no_head_begins_like_a_question() -> None:
    """A module, of tests too, says what it does or shows: a sentence, and no clause of one."""
    question = re.compile(r"(What|Whether|How|Who|Where|Which)\b")
    assert [name_of(p) for p in modules() if question.match(doc_of(p))] == []


def doc_of(path: Path) -> str:
    """The docstring of a module, or nothing."""
    return ast.get_docstring(tree_of(path)) or ""


def test_everything_public_says_what_it_means() -> None:
    """Public functions, classes and methods have a docstring, unless another one speaks for them.

    A method that overrides, or that implements a method of one of our protocols, has the
    documentation of the original.
    """
    trees = {path: tree_of(path) for path in product()}
    promised = {name for tree in trees.values() for name in protocol_methods(tree)}
    silent = [
        f"{name_of(path)}:{name}"
        for path, tree in trees.items()
        for name in undocumented(tree.body, promised)
    ]
    assert silent == []


def protocol_methods(tree: ast.Module) -> set[str]:
    """Names of the methods that the protocols of a module document."""
    protocols = (
        node
        for node in statements_of(tree)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).startswith("Protocol") for base in node.bases)
    )
    methods = (node for protocol in protocols for node in protocol.body)
    return {m.name for m in methods if isinstance(m, FUNCTIONS) and ast.get_docstring(m)}


def undocumented(body: list[ast.stmt], promised: set[str], prefix: str = "") -> list[str]:
    """Names of the public definitions in `body`, and inside its classes, without a docstring."""
    names = []
    for node in body:
        if not isinstance(node, (ast.ClassDef, *FUNCTIONS)) or node.name.startswith("_"):
            continue
        implements = bool(prefix) and node.name in promised
        if not (ast.get_docstring(node) or implements or inherits_its_docstring(node)):
            names.append(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            names += undocumented(node.body, promised, f"{prefix}{node.name}.")
    return names


def inherits_its_docstring(node: ast.stmt) -> bool:
    """Whether a definition repeats one that is documented elsewhere."""
    decorators = getattr(node, "decorator_list", [])
    return any(ast.unparse(d).endswith(("override", "overload", ".setter")) for d in decorators)


def test_there_are_no_reminders() -> None:
    """What is left to do is in an issue, not in a file."""
    reminder = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
    assert occurrences(reminder, tracked()) == {}


def test_no_merge_was_left_half_done() -> None:
    """Git leaves both sides in a file, and a page of prose breaks no test by that."""
    marks = re.compile(r"^(?:<{7} .+|>{7} .+)$", re.MULTILINE)
    assert occurrences(marks, tracked()) == {}


def test_no_file_names_a_host_to_install_from() -> None:
    """Whoever installs brings his own package index: locks and scripts name none."""
    host = re.compile(
        r"https?://(?!127\.0\.0\.1|localhost)[\w.-]*(py" + r"pi|pythonhosted|anaconda|maven)"
        r"|^\s*(--(extra-)?index-url|--find-links|--trusted-host)\b",
        re.MULTILINE,
    )
    assert occurrences(host, tracked()) == {}


@pytest.mark.parametrize("lock", sorted(p.name for p in ROOT.glob("*.lock")))
def test_locks_pin_every_package_by_hash(lock: str) -> None:
    """Every line of a lock is an exact version with hashes, and no address at all."""
    text = (ROOT / lock).read_text()
    pins = re.split(r"\n(?=\S)", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).strip())
    assert pins
    assert [p for p in pins if not re.match(r"[\w.\[\]-]+==\S+", p)] == []
    assert [p for p in pins if "--hash=sha256:" not in p] == []
    assert "://" not in text


def test_what_is_tested_is_what_runs() -> None:
    """The lock of the tests repeats every pin of the lock that users install."""
    pin = re.compile(r"^[\w.\[\]-]+==[^\\\n]+", re.MULTILINE)
    runs, tested = (
        {line.strip() for line in pin.findall((ROOT / name).read_text())}
        for name in ("requirements.lock", "requirements-test.lock")
    )
    assert runs
    assert runs - tested == set()


def test_locks_hold_what_the_project_asks_for() -> None:
    """A clone can do everything: the lock has every dependency, and those of all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {canonicalize_name(Requirement(line).name) for line in asked}
    locked = re.findall(
        r"^([\w.-]+)(?:\[[\w,]+\])?==", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    )
    assert names - {canonicalize_name(name) for name in locked} == set()


def test_no_file_names_a_folder_of_one_machine() -> None:
    """No absolute path of somebody's machine, and no fixed temporary folder, outside of tests."""
    machine = re.compile(r"(?<![\w./:-])/(work|root|home|Users|tmp|var/tmp|mnt)/[\w.-]+")
    files = [p for p in tracked() if not p.is_relative_to(ROOT / "tests")]
    assert occurrences(machine, files) == {}


def occurrences(pattern: re.Pattern[str], files: list[Path]) -> dict[str, str]:
    """The first hit of `pattern` in each file that has one."""
    hits = {name_of(p): pattern.search(p.read_text(encoding="utf-8")) for p in files}
    return {name: hit.group() for name, hit in hits.items() if hit}


NAME: Final = re.compile(r"(?<![\w./$-])shardline(?!\.tar)((?:\.[A-Za-z_]\w*)+)")
"""A dotted name of ours, and no archive of that name."""


def test_what_prose_names_exists() -> None:
    """A dotted name in a document, a docstring or a setting leads to a module, or into one."""
    texts = [*product(), *(p for p in tracked() if p.suffix in {".md", ".toml", ".properties"})]
    lost = {
        f"{name_of(path)}: {found.group()}"
        for path in texts
        for found in NAME.finditer(path.read_text(encoding="utf-8"))
        if not is_there(found.group(1).removeprefix(".").split("."))
    }
    assert lost == set()


NOT_OURS: Final = {
    "Materialize, Delta": """
        ActiveComputeState Applier CommandHistory HollowBatch MfpPlan PersistClient SnapshotMode
        apply_merge_res completed_fetches compute_state err mz_now shard_source_descs
        shard_source_fetch DeltaSourceOffset
    """,
    "Spark and its SQL": """
        AnalysisException COUNT DataFrameWriter DoubleColumnStats InMemoryTableScanExec
        PySparkException RewriteDistinctAggregates SUM STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY
        SparkSubmitOptionParser StreamingQueryException
        TreeNode addListener analyzed compactInterval current_timestamp current_user decimal
        fileSource foreachBatch hideTraceback input_file_name java_method now option queryExecution
        rand retainedExecutions schemaString throwable toJSON to_arrow_type try_reflect udf
    """,
    "Java, Python, their libraries and protocols": """
        ArrowException Config DecodeError F_SETSIG Py4JError Route SHORT_IDS SplittableRandom
        Starlette ZoneId assert_df_equality basic closing multiprocessing pyproject ssl
    """,
    "users, in examples": """
        CODE connection_string flights_progress haeder lsn partBufferBytes sasl
    """,
}
"""Names in docstrings that this code does not have, by those who have them."""


def test_what_docstrings_name_exists() -> None:
    """Calls in the examples of heads, classes below `Raises:`, and names in backticks.

    An example calls what its module has, what another one has at its top, or any method.
    """
    text = "\n".join(path.read_text(encoding="utf-8") for path in product())
    methods = set(re.findall(r"\bdef (\w+)", text))
    classes = {*re.findall(r"^ *class (\w+)", text, re.MULTILINE), *dir(builtins)}
    tops = {getattr(node, "name", "") for path in product() for node in tree_of(path).body}
    words = set().union(*map(words_of, [*product(), *tracked("conf", "app")]))
    foreign = set(" ".join(NOT_OURS.values()).split())
    lost = set()
    for path in product():
        own = words_of_room(path) if path.stem == "__init__" else words_of(path)
        for dot, name in calls_in_examples(path):
            if name not in own and name not in (methods if dot else tops):
                lost.add((name_of(path), f"{name}(…)", name))
        for doc in docs_of(path):
            lost |= {(name_of(path), f"`{one}`", one) for one in names_in(doc) - words}
            lost |= {(name_of(path), f"Raises: {one}", one) for one in raises_of(doc) - classes}
    assert sorted(f"{file}: {shown}" for file, shown, name in lost if name not in foreign) == []


@cache
def words_of(path: Path) -> frozenset[str]:
    """All words of a file; of a module those of its code, without docstrings and comments."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".py":
        for node in doc_nodes(path):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
        lines = [re.sub(r"(^|\s)#.*", "", line) for line in lines]
    return frozenset(re.findall(r"\w+", "\n".join(lines)))


def words_of_room(init: Path) -> frozenset[str]:
    """The words of all modules of a room."""
    return frozenset().union(*(words_of(path) for path in init.parent.glob("*.py")))


@cache
def doc_nodes(path: Path) -> list[ast.Constant]:
    """The docstrings of a module and of all in it: functions, classes and constants."""
    nodes = (node.value for node in statements_of(tree_of(path)) if isinstance(node, ast.Expr))
    return [one for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def docs_of(path: Path) -> list[str]:
    """Their texts."""
    return [str(node.value) for node in doc_nodes(path)]


def calls_in_examples(path: Path) -> set[tuple[str, str]]:
    """What the indented lines of a head call, each with a dot before it or "" for none.

    Without what they define themselves, builtins, SQL in quotes and the single letters of formulas.
    """
    examples = "\n".join(re.findall(r"^    .*$", doc_of(path), re.MULTILINE))
    made = {*re.findall(r"\b(\w+) = ", examples), *re.findall(r"\bdef (\w+)", examples)}
    code = re.sub(r'"[^"\n]*"', "", examples)
    calls = set(re.findall(r"(\.?)\b([A-Za-z_]\w+)\(", code))
    return {(dot, name) for dot, name in calls if name not in made | {*dir(builtins)}}


def names_in(doc: str) -> set[str]:
    """The parts of dotted names and calls in backticks; names with digits are of examples."""
    names = re.findall(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`]*\))?`", doc)
    parts = {part for name in names for part in name.split(".")}
    return {part for part in parts if len(part) > 1 and not re.search(r"\d", part)}


def raises_of(doc: str) -> set[str]:
    """The classes below `Raises:`."""
    section = re.search(r"^( *)Raises:\n((?:\1 .*\n|\n)*)", doc, re.MULTILINE)
    if section is None:
        return set()
    entry = re.compile(rf"^{section[1]} {{4}}(?:\w+\.)*(\w+): ", re.MULTILINE)
    return set(entry.findall(section[2]))


def test_the_page_of_the_lane_names_its_modules() -> None:
    """All of them, in the first column of its table, and none that is not there."""
    page = (ROOT / "docs" / "lane.md").read_text(encoding="utf-8")
    table = page.partition("| module | is |")[2].partition("\n\n")[0]
    column = [row.partition(" | ")[0] for row in table.splitlines()]
    named = {name for cell in column for name in re.findall(r"`(\w+)`", cell)}
    assert named == {path.stem for path in (ROOT / "app" / "lane").glob("[a-z]*.py")}


LISTED: Final = re.compile(r"^    ([a-z]\w*/?(?:, [a-z]\w*/?)*)(?: {2,}|$)", re.MULTILINE)
"""The names at the start of a line of a room's list, before two spaces and what they are."""


def test_the_head_of_each_room_lists_its_modules() -> None:
    """Every module and room in it is listed, and none that is not there; its rules are complete."""
    wrong = {}
    for path in [p for p in product() if p.name == "__init__.py" and p.parent.name != "shardline"]:
        head = doc_of(path)
        listed = {name for cell in LISTED.findall(head) for name in cell.split(", ")}
        there = {p.stem for p in path.parent.glob("[a-z]*.py")}
        there |= {f"{p.parent.name}/" for p in path.parent.glob("*/__init__.py")}
        rules = {part for part in ("Owns", "May use", "ever: ") if part not in head}
        if listed != there or rules:
            wrong[name_of(path)] = (sorted(listed ^ there), rules)
    assert wrong == {}


def test_the_page_of_what_tests_share_names_all_of_it() -> None:
    """So that who writes a test finds what is there, and makes no second one."""
    folder = ROOT / "tests" / "support"
    named = set(re.findall(r"`(\w+)`", (folder / "README.md").read_text(encoding="utf-8")))
    assert named == {path.stem for path in folder.rglob("[a-z]*.py")}


def is_there(parts: list[str]) -> bool:
    """Whether a path below the installed package is a module, or a name that its module has."""
    place = ROOT / "src" / "shardline"
    for position, part in enumerate(parts):
        if (place / part).is_dir():
            place /= part
            continue
        file = place / f"{part}.py"
        module, rest = (
            (file, parts[position + 1 :]) if file.is_file() else (place, parts[position:])
        )
        text = module if module.suffix else module / "__init__.py"
        return (
            not rest or re.search(rf"\b{rest[0]}\b", text.read_text(encoding="utf-8")) is not None
        )
    return True


def retired_names() -> set[str]:
    """Names that the glossary says nobody needs to learn any more: the first column of its end."""
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = page.partition("## Retired")[2].splitlines()
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.rpartition(" | ")[0])}


RETIRED_AND_USED: Final = {
    "app/coordinator/project_comparison.py:wanted": "a field of the JSON interface",
    "app/introspection/verdicts/rules.py:starting": "each rule has the name of its verdict",
    "app/project/plan.py:wanted": "a field of the JSON interface",
    "app/sql/temporal_filters.py:bounds": "those of a time",
    "app/storage/generators/options.py:pace": "the option of that name",
    "app/storage/sinks/progress.py:given": "a column on storage",
    "datasource/filters/predicates.py:bounds": "least and greatest values",
    "datasource/maintenance/compaction_claim.py:keep": "renews, or only asks if it is still due",
    "datasource/parts/stage.py:bounds": "least and greatest values",
    "datasource/shard/codec.py:critical": "a field on storage",
    "datasource/shard/state.py:critical": "a field on storage",
    "datasource/spark_native/footers.py:bounds": "least and greatest values",
    "datasource/types/stats.py:bounds": "least and greatest values",
    "datasource/upsert.py:bounds": "least and greatest values",
}
"""Retired names that are the right ones where they stand, and why; the list only gets shorter."""


def test_retired_names_stay_retired() -> None:
    """No module, class, function, method or attribute has one; variables and options may.

    An underscore before it makes no better name of it.
    """
    retired = retired_names()
    assert len(retired) > 20, "the table has moved"
    found = {name_of(path): path.stem for path in product() if path.stem in retired}
    for path in product():
        for name, line in names_given_by(tree_of(path)):
            if name.strip("_") in retired:
                found[f"{name_of(path)}:{name.strip('_')}"] = f"line {line}"
    assert {where: line for where, line in found.items() if where not in RETIRED_AND_USED} == {}
    assert RETIRED_AND_USED.keys() - found.keys() == set(), "these are gone from there"


def names_given_by(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names of all that a module defines, of fields of its classes and attributes of `self`."""
    for node in statements_of(tree):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name, node.lineno
        if isinstance(node, ast.ClassDef):
            fields = chain.from_iterable(map(targets_of, node.body))
            yield from ((one.id, one.lineno) for one in fields if isinstance(one, ast.Name))
        for one in targets_of(node):
            if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self":
                yield one.attr, one.lineno


def targets_of(node: ast.AST) -> list[ast.AST]:
    """What a statement assigns to; nothing of another statement."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)):
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [one for target in targets for one in ast.walk(target)]


OWN_THREADS: Final = {
    "datasource/background.py": "makes all others",
    "datasource/stores/probe.py": "begun and joined by one function, which raises what they met",
}
"""Modules that make threads themselves, and why."""


def test_threads_are_made_in_one_way() -> None:
    """By `datasource/background.py`, where no error ends one in silence."""
    makes = r"\b(Inheritable)?Thread\(|\bTimer\(|threading\.Thread\b"
    assert modules_with(makes) == OWN_THREADS.keys()


OWN_PAUSES: Final = {
    "app/compute/view/view_inputs.py": "a pace: looks at times that go on by themselves",
    "app/demo/story.py": "waits for objects, until one of them fails",
    "datasource/shard/backoff.py": "the pause after a lost race, which must not double",
    "datasource/shard_source/freeze.py": "waits for a part as long as it takes, or until a timeout",
    "datasource/stores/faulty.py": "a slow store",
    "jobs/run.py": "a pace: follows an application to its end",
}
"""Modules that pause where nothing can end the pause, and why."""


def test_retries_are_made_in_one_way() -> None:
    """By `datasource/waiting.py`: a pause that nothing can end is made by hand for few reasons."""
    assert modules_with(r"\.wait\(\s*(threading\.Event\(\)|never\b)") == OWN_PAUSES.keys()


def test_names_of_the_jvm_are_looked_up_in_one_way() -> None:
    """By `java_names.py`, in one piece: each package on the way costs a search."""
    assert modules_with(r"jvm\.(com|java|javax|org|scala)\.|jvm, \"(java|org|scala)\"\)") == set()


def modules_with(pattern: str) -> set[str]:
    """Names of the product's modules whose text has `pattern`."""
    found = re.compile(pattern)
    return {name_of(path) for path in product() if found.search(path.read_text(encoding="utf-8"))}


FORK_SERVER: Final = "shardline.planner_fork_server"
"""A program that a planner starts, by its name."""


def test_no_module_is_dead() -> None:
    """Every installed module is imported by another one, or is where a program starts."""
    imported = {name for path in product() for name in imports_of(path)}
    programs = [*(ROOT / "jobs").glob("*.py"), *(ROOT / "src").glob("pyspark_*.py")]
    starts = {dotted(p) for p in programs} | {"shardline.__main__", FORK_SERVER}
    imported |= OFFERED
    # A package is alive when one of its modules is.
    alive = {
        name.rsplit(".", n)[0] for name in imported | starts for n in range(name.count(".") + 1)
    }
    assert sorted(dotted(p) for p in product() if dotted(p) not in alive) == []


FACES: Final = ("conditions", "frames", "report", "schema", "sink", "state", "updates", "upkeep")
"""Modules of `datasource` that name what others may use of the rooms behind them."""


def test_a_face_only_names_what_somebody_uses() -> None:
    """Code in a face would be a second place for it; a name that nobody asks for binds its room."""
    used: dict[str, set[str]] = {}
    for statement in chain.from_iterable(map(imported_names, product())):
        used.setdefault(statement[0], set()).add(statement[1])
    for face in FACES:
        path = ROOT / f"datasource/{face}.py"
        shapes = (ast.Expr, ast.ImportFrom, ast.Assign)
        assert not [node for node in tree_of(path).body if not isinstance(node, shapes)], face
        unused = {name for _, name in imported_names(path)} - used[f"shardline.datasource.{face}"]
        assert not unused, f"{face}: {sorted(unused)}"


def imported_names(path: Path) -> Iterator[tuple[str, str]]:
    """Each name that a file imports from a module of ours, with the module."""
    for node in statements_of(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardline"):
            yield from ((node.module or "", alias.name) for alias in node.names)


def imports_of(path: Path) -> set[str]:
    """Every dotted name that `path` imports, other than its own."""
    names: set[str] = set()
    for node in statements_of(tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names - {dotted(path)}


def test_jobs_shadow_no_standard_module() -> None:
    """`jobs/` is the first folder a driver imports from, so no job is named like a module of it."""
    assert {p.stem for p in (ROOT / "jobs").glob("*.py")} & sys.stdlib_module_names == set()


def test_the_commands_of_the_readme_exist() -> None:
    """Every command, job and file that the documents tell a reader to use is there."""
    missing = set()
    known = re.search(r"^commands=\((.*)\)$", (ROOT / "spark-submit.sh").read_text(), re.MULTILINE)
    assert known
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = path.read_text()
        for command in re.findall(r"\./spark-submit\.sh ([a-z]\w*)\b(?![./])", text):
            if command not in known.group(1).split():
                missing.add(f"{path.name}: {command}")
        for target in re.findall(r"\]\((?!\w+:|#)([^)#]+)", text):
            if not (path.parent / target).exists():
                missing.add(f"{path.name}: {target}")
    assert missing == set()


def test_a_cluster_is_not_given_the_loopback_of_the_defaults() -> None:
    """Spark refuses a local master in cluster mode; a driver on loopback has no executor elsewhere.

    Spark itself leaves out the driver's name in cluster mode, and not the address it listens at.
    """
    lacking = set()
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for block in re.findall(r"```\w*\n(.*?)```", path.read_text(), re.DOTALL):
            for command in block.replace("\\\n", " ").splitlines():
                if "spark-submit" not in command or "conf/spark-defaults.conf" not in command:
                    continue
                for needed in ("--master ", "spark.driver.bindAddress="):
                    if needed not in command:
                        lacking.add(f"{path.name}: {needed}")
    assert lacking == set()
