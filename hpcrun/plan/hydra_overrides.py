"""Check Hydra's overrides against the project's YAML configuration, without importing Hydra.

Hydra composes a configuration from files (hydra.cc, "The Defaults List"). Only what is certain is
reported: if a part of the configuration is unknown, the keys below it are not checked.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from msgspec import Struct

_KEY = re.compile(r"~?[A-Za-z_]\w*(?:[./][A-Za-z_]\w*)*")
_CHOICE = re.compile(r"[\w./-]+")
_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_SIMILARITY = 0.6
_DEEPEST = 20  # nested defaults lists


class UnknownConfig(Exception):
    """The configuration cannot be composed from the files alone."""


class HydraConfig(Struct):
    """A composed configuration.

    Attributes:
        keys: All keys with dots.
        open_keys: Keys below which others may exist: values that are no maps.
        choices: The chosen option of each group in the defaults lists; None for several.
    """

    keys: set[str]
    open_keys: set[str]
    choices: dict[str, str | None]


class HydraArguments(Struct, frozen=True):
    """The arguments of a Hydra script; "" for options that are not given."""

    config_path: str
    config_name: str
    overrides: list[str]


def parse_hydra_arguments(args: Sequence[str]) -> HydraArguments | None:
    """Parse the arguments; None if they select more than one folder of configurations, or no run.

    >>> parse_hydra_arguments(["-cn", "big", "lr=1", "--multirun"])
    HydraArguments(config_path='', config_name='big', overrides=['lr=1'])
    >>> parse_hydra_arguments(["--config-dir=more", "lr=1"])
    """
    given = {"--config-path": "", "--config-name": ""}
    short = {"-cp": "--config-path", "-cn": "--config-name", "-m": "--multirun"}
    overrides: list[str] = []
    waiting = list(args)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        name = short.get(name, name)
        if name in given:
            if not equals and not waiting:
                return None
            given[name] = value if equals else waiting.pop(0)
        elif not word.startswith("-"):
            overrides.append(word)
        elif name != "--multirun":
            return None
    return HydraArguments(given["--config-path"], given["--config-name"], overrides)


def check_hydra_overrides(
    name: str, files: Mapping[str, str], overrides: Sequence[str]
) -> list[str]:
    """Return the overrides that Hydra would reject.

    Args:
        name: The primary configuration.
        files: The text of each file in the folder of configurations, by its relative path without
            suffix.

    >>> files = {"config": "defaults: [{model: small}]\\nlr: 1", "model/small": "depth: 2"}
    >>> check_hydra_overrides("config", files, ["lr=2", "model.dept=3", "model=smal", "+new=1"])
    ['model=smal: there is no model/smal.yaml; did you mean small?']
    >>> check_hydra_overrides("config", files, ["lr=2", "model.dept=3"])
    ['model.dept: the configuration config has no such key; did you mean model.depth?']
    >>> check_hydra_overrides("confg", files, [])
    ['there is no configuration confg; did you mean config?']
    """
    if name not in files:
        return [f"there is no configuration {name}{_suggest(name, files)}"]
    groups = {folder for path in files for folder in _folders_above(path)}
    chosen: dict[str, str] = {}
    faults: list[str] = []
    keys: list[str] = []
    added: list[str] = []
    is_known = True
    for word in overrides:
        key, equals, value = word.partition("=")
        new = key.lstrip("+")
        if key != new and new not in groups and re.fullmatch(r"\w+(?:\.\w+)*", new):
            added.append(new)
        elif key != new or "@" in key:
            # It may add an option of a group, which can have any keys and a defaults list.
            is_known = False
        if key.startswith(("+", "hydra.", "hydra/")) or not _KEY.fullmatch(key):
            continue
        if key in groups and equals:
            if not _CHOICE.fullmatch(value) or value == "null":
                return []  # a list of options, or none
            if f"{key}/{value.removesuffix('.yaml')}" not in files:
                options = [
                    path.removeprefix(f"{key}/") for path in files if posixpath.dirname(path) == key
                ]
                faults.append(f"{word}: there is no {key}/{value}.yaml{_suggest(value, options)}")
            chosen[key] = value.removesuffix(".yaml")
        elif "/" not in key and key.lstrip("~") not in groups:
            keys.append(key.lstrip("~"))
    if faults or not is_known:
        return faults
    try:
        config = _compose(name, files, chosen)
    except UnknownConfig:
        return []
    faults += [
        f"{group}={option}: {name} has no {group} in its defaults list; +{group}={option} adds it"
        for group, option in chosen.items()
        if group not in config.choices
    ]
    for key in added:
        _add_keys(config, key, None)
    for key in keys:
        parts = key.split(".")
        above = {".".join(parts[:end]) for end in range(1, len(parts))}
        if key in config.keys or above & config.open_keys:
            continue
        close = _suggest(key, config.keys)
        hint = close or f"; +{key}=VALUE adds it"
        faults.append(f"{key}: the configuration {name} has no such key{hint}")
    return faults


def _suggest(word: str, known: Sequence[str] | Mapping[str, object] | set[str]) -> str:
    close = difflib.get_close_matches(word, sorted(known), 1, _SIMILARITY)
    return f"; did you mean {close[0]}?" if close else ""


def _folders_above(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def _compose(name: str, files: Mapping[str, str], chosen: Mapping[str, str]) -> HydraConfig:
    """Compose a configuration. Raises UnknownConfig."""
    config = HydraConfig(set(), set(), {})
    overridden = dict(chosen)
    _collect_overrides(name, files, overridden, 0)
    _add_file(config, name, files, overridden, "", 0)
    return config


def _collect_overrides(
    name: str, files: Mapping[str, str], overridden: dict[str, str], depth: int
) -> None:
    """Collect ``override GROUP: OPTION`` of the defaults lists; outer ones win."""
    for group, option, kind in _read_defaults(name, files):
        if kind == "override" and isinstance(option, str):
            overridden.setdefault(group, option)
    for group, option, kind in _read_defaults(name, files):
        option = overridden.get(group, option)
        path = f"{group}/{option}" if group else str(option)
        if kind != "override" and isinstance(option, str) and path in files and depth < _DEEPEST:
            _collect_overrides(path, files, overridden, depth + 1)


def _add_file(
    config: HydraConfig,
    path: str,
    files: Mapping[str, str],
    overridden: Mapping[str, str],
    package: str | None,
    depth: int,
) -> None:
    """Add the keys of a file and of the files in its defaults list.

    Args:
        package: Where the defaults list puts the file; None: where the file itself says.
    """
    if path not in files or depth > _DEEPEST:
        raise UnknownConfig
    text = files[path]
    group = posixpath.dirname(path)
    header = _PACKAGE.search(text[:1000])
    if package is not None:
        packages = [package]
    elif header is not None:
        packages = [_resolve_package(header[1], group, posixpath.basename(path))]
    else:
        packages = [group.replace("/", "."), ""]  # Hydra 1.0 did not use the group
    for inner, option, kind in _read_defaults(path, files):
        if kind == "override":
            continue
        inner_group, _, at = inner.partition("@")
        options = option if isinstance(option, list) else [option]
        given = overridden.get(inner_group)
        config.choices[inner_group] = given if isinstance(option, list) else option
        for each in [given] if given is not None else options:
            if each is None:
                continue
            target = f"{inner_group}/{each}" if inner_group else each
            if "${" in target or "???" in target:
                raise UnknownConfig
            if target not in files:
                if kind == "optional":
                    continue
                raise UnknownConfig
            place = _resolve_package(at, inner_group, each) if at else None
            if place is not None and packages[0]:
                place = f"{packages[0]}.{place}" if place else packages[0]
            if place is None and not inner_group:
                place = packages[0]
            _add_file(config, target, files, overridden, place, depth + 1)
    content = _read_yaml(text)
    for place in packages:
        _add_keys(config, place, content, top=True)


def _resolve_package(text: str, group: str, name: str) -> str:
    if text in ("_global_", "_here_"):
        return ""
    place = group.replace("/", ".")
    return text.replace("_group_", place).replace("_name_", name).replace("_global_.", "")


def _add_keys(config: HydraConfig, prefix: str, value: Any, *, top: bool = False) -> None:
    if prefix:
        parts = prefix.split(".")
        config.keys |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    if not isinstance(value, dict):
        if not top:
            config.open_keys.add(prefix)
        return
    if not value and not top:
        config.open_keys.add(prefix)
    for key, inner in value.items():
        if top and key == "defaults":
            continue
        _add_keys(config, f"{prefix}.{key}" if prefix else str(key), inner)


def _read_yaml(text: str) -> Any:
    try:
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnknownConfig from error


def _read_defaults(
    path: str, files: Mapping[str, str]
) -> list[tuple[str, str | list[str] | None, str]]:
    """Read a defaults list as (group, option, kind), the group relative to the root."""
    content = _read_yaml(files[path])
    if not isinstance(content, dict):
        raise UnknownConfig
    group = posixpath.dirname(path)
    found: list[tuple[str, str | list[str] | None, str]] = []
    for entry in content.get("defaults") or []:
        if isinstance(entry, str):
            if entry != "_self_":
                found.append(("", _join(group, entry), ""))
            continue
        if not isinstance(entry, dict) or len(entry) != 1:
            raise UnknownConfig
        ((key, option),) = entry.items()
        kind, _, rest = str(key).rpartition(" ")
        kind, name = kind.strip(), rest
        if name.lstrip("/").partition("/")[0] == "hydra" or kind not in (
            "",
            "optional",
            "override",
        ):
            if kind not in ("", "optional", "override"):
                raise UnknownConfig
            continue
        is_list = isinstance(option, list) and all(isinstance(each, str) for each in option)
        if option is not None and not isinstance(option, (str, int)) and not is_list:
            raise UnknownConfig
        if isinstance(option, int):
            option = str(option)
        if isinstance(option, str):
            option = option.removesuffix(".yaml")
        found.append((_join(group, name), option, kind))
    return found


def _join(group: str, name: str) -> str:
    if name.startswith("/"):
        return name[1:]
    return f"{group}/{name}" if group else name
