"""Settings: what the file says, what wins, and what is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardline.app.settings.config import (
    DEFAULT_FILE,
    DemoSettings,
    LogSettings,
    RuntimeSettings,
    Settings,
    load,
)
from shardline.datasource.errors import InvalidUsage


def written(folder: Path, text: str) -> Path:
    path = folder / "conf" / "mine.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_the_shipped_file_is_the_defaults() -> None:
    """`conf/app.toml` names every key with the default that the code has without it."""
    root = DEFAULT_FILE.parents[1]
    assert load() == load(None, {"demo": {"data": str(root / "data")}})
    shipped = tomllib.loads(DEFAULT_FILE.read_text(encoding="utf-8"))
    defaults = msgspec.to_builtins(Settings(), enc_hook=str)
    assert shipped == defaults


def test_every_key_is_explained() -> None:
    """Above each key of the shipped file there is a comment."""
    lines = DEFAULT_FILE.read_text(encoding="utf-8").splitlines()
    keys = [n for n, line in enumerate(lines) if "=" in line and not line.startswith("#")]
    sections = (DemoSettings, RuntimeSettings, LogSettings)
    assert len(keys) == sum(len(section.__struct_fields__) for section in sections)
    explained = (lines[n - 1].startswith("# ") or n - 1 in keys for n in keys)
    assert all(explained)


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    """Editors on Windows put one in front, which nobody sees."""
    assert load(written(tmp_path, "\ufeffdemo.days = 7\n")).demo.days == 7


def test_the_command_line_wins_over_the_file_over_the_defaults(tmp_path: Path) -> None:
    """Each key is taken from the first of the three that has it."""
    file = written(
        tmp_path, '[demo]\ndays = 7\ndays_per_second = 2\n[storage]\n"s3.region" = "x"\n'
    )
    settings = load(file, {"demo": {"days": 9}, "storage": {"s3.endpoint": "http://h"}})
    assert settings.demo.days == 9
    assert settings.demo.days_per_second == 2.0
    assert settings.demo.lock_timeout_ms == Settings().demo.lock_timeout_ms
    assert settings.storage == {"s3.region": "x", "s3.endpoint": "http://h"}


def test_folders_of_the_file_count_from_the_repository(tmp_path: Path) -> None:
    """A relative folder means the same wherever the job is started, an absolute one itself."""
    assert load(written(tmp_path, '[demo]\ndata = "elsewhere"')).demo.data == tmp_path / "elsewhere"
    assert load(written(tmp_path, '[demo]\ndata = "/far"')).demo.data == Path("/far")


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("lake", "{root}/lake"),
        ("a:b", "{root}/a:b"),
        ("/far/lake", "/far/lake"),
        ("file:///far/lake", "file:///far/lake"),
        ("s3://bucket/lake", "s3://bucket/lake"),
        ("", "{root}/data/shards"),
    ],
)
def test_every_path_of_the_file_counts_from_there(
    location: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started elsewhere, an application does not begin anew in an empty place."""
    file = written(tmp_path, f'[demo]\nlocation = "{location}"\n[log]\nfile = "logs/a.jsonl"')
    for folder in (tmp_path, tmp_path / "conf"):
        monkeypatch.chdir(folder)
        settings = load(file)
        assert settings.demo.url == expected.format(root=tmp_path)
        assert settings.log.file == str(tmp_path / "logs/a.jsonl")


def test_paths_of_a_command_line_count_from_where_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They win over the file's, and not by the file's rule."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    file = written(tmp_path, '[demo]\nlocation = "lake"\ndata = "d"')
    demo = load(file, {"demo": {"location": "pond", "data": "e"}}).demo
    assert (demo.url, demo.data) == (str(tmp_path / "here/pond"), tmp_path / "here/e")


def test_without_a_location_the_shards_are_in_the_folder() -> None:
    """An empty location means `shards` inside `data`; a given one is used as it is."""
    assert load(None, {"demo": {"data": "/d"}}).demo.url == "/d/shards"
    assert load(None, {"demo": {"location": "s3://b/p"}}).demo.url == "s3://b/p"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[demo]\nday = 3", "unknown setting 'demo.day' — hint: did you mean 'demo.days'?"),
        ("[dmo]\ndays = 3", "unknown setting 'dmo' — hint: did you mean 'demo'?"),
        ("[demo]\ndays = 366", "setting 'demo.days' is 366"),
        ("[demo]\ndays = true", "setting 'demo.days' is True"),
        ('[demo]\ndays = "3"', "setting 'demo.days' is '3'"),
        ('[log]\nlevel = "LOUD"', "setting 'log.level' is 'LOUD'"),
        ("[storage]\ns3.region = 'x'", "setting 'storage.s3'"),
        ("demo = 3", "setting 'demo' is 3"),
        (
            '[runtime]\nlisten = "4200"',
            "setting 'runtime.listen' is '4200' — hint: write 127.0.0.1:",
        ),
        ('[runtime]\nlisten = "0.0.0.0:99999"', "setting 'runtime.listen' is '0.0.0.0:99999'"),
        ('[runtime]\nlisten = "::1:٣"', "setting 'runtime.listen'"),
        ("[demo\n", "are not TOML"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    """Unknown keys, wrong types, values out of range and broken files name what is wrong."""
    with pytest.raises(InvalidUsage) as refused:
        load(written(tmp_path, text))
    assert said in str(refused.value)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "parts"), [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:65535", ("::1", 65535))]
)
def test_an_address_has_a_host_and_a_port(text: str, parts: tuple[str, int]) -> None:
    """As the command line gives it."""
    listen = load(None, {"runtime": {"listen": text}}).runtime.listen
    assert (listen.host, listen.port) == parts


@pytest.mark.parametrize("text", ['demo = "x"', "storage = 3", 'runtime = ["a"]'])
def test_a_section_that_is_none_is_refused_whatever_wins_over_it(tmp_path: Path, text: str) -> None:
    """What a command line adds to a section does not hide that there is none."""
    name = text.partition(" ")[0]
    overrides: dict[str, dict[str, Any]] = {"demo": {"days": 3}, "storage": {"s3.region": "x"}}
    overrides["runtime"] = {}
    with pytest.raises(InvalidUsage, match=rf"\[INVALID_SETTING\] setting '{name}' is "):
        load(written(tmp_path, text), overrides)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A file that was asked for and is not there is an error, not the defaults."""
    with pytest.raises(InvalidUsage, match="SETTINGS_UNREADABLE"):
        load(tmp_path / "no.toml")


def test_settings_show_no_credential() -> None:
    """Storage options stay out of every representation."""
    settings = load(None, {"storage": {"s3.secret-access-key": "hush-hush"}})
    assert "hush-hush" not in repr(settings)
    assert settings.storage["s3.secret-access-key"] == "hush-hush"
