"""Why a dataset has to be computed: what differs from the most similar of the latest datasets of its stage."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.manifest import Manifest, find_manifest, list_manifests
from tasks.storage import Storage

COMPARED_MANIFESTS = 20  # the latest ones; more would only make a dry run slower
SHOWN = 3


@dataclass(frozen=True)
class Identity:
    """What decides a result, taken apart so that a difference has a name."""

    config: dict[str, Any]
    inputs: dict[str, str]  # role -> digest
    external: dict[str, Any]
    modules: dict[str, str]
    packages: dict[str, str]
    generation: int


def cause_of(storage: Storage, stage: str, now: Identity) -> str:
    """A few words: `select.min_words: 50 -> 60; code of tasks.select changed`."""
    before = (find_manifest(storage, reference) for reference in list_manifests(storage, stage)[:COMPARED_MANIFESTS])
    causes = [differences(now, _identity(manifest)) for manifest in before if manifest is not None]
    best = min(causes, key=len, default=None)
    if best is None:
        return "never computed here"
    more = [f"and {len(best) - SHOWN} more"] if len(best) > SHOWN else []
    return "; ".join(best[:SHOWN] + more) or "its manifest is gone"


def differences(now: Identity, before: Identity) -> list[str]:
    """One line per difference."""
    lines = [f"input {role} changed" for role in _changed(now.inputs, before.inputs)]
    lines += [f"{name} changed" for name in _changed(now.external, before.external)]
    lines += [f"{path}: {old} -> {new}" for path, (old, new) in config_changes(now.config, before.config).items()]
    lines += [f"code of {name} changed" for name in _changed(now.modules, before.modules)]
    lines += [f"package {name} changed" for name in _changed(now.packages, before.packages)]
    if now.generation != before.generation:
        lines.append(f"forced, generation {now.generation}")
    return lines


def config_changes(now: Any, before: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted path -> (before, now) of every value that differs."""
    if not (isinstance(now, dict) and isinstance(before, dict)):
        return {} if now == before else {path: (before, now)}
    changes: dict[str, tuple[Any, Any]] = {}
    for key in sorted(now.keys() | before.keys()):
        changes.update(config_changes(now.get(key), before.get(key), f"{path}.{key}" if path else key))
    return changes


def _identity(manifest: Manifest) -> Identity:
    return Identity(
        config=manifest.config,
        inputs={entry["role"]: entry["digest"] for entry in manifest.inputs},
        external=manifest.external,
        modules=manifest.code["modules"],
        packages=manifest.code["packages"],
        generation=manifest.generation,
    )


def _changed(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    return [key for key in sorted(now.keys() | before.keys()) if now.get(key) != before.get(key)]
