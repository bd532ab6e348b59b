"""How often each sub-source will be read: what its weight draws from it, beside what there is.

Epochs = tokens drawn over a phase and those that it continues / tokens in the train split; exact where the pack is
there, estimated from the bytes of the mix before. Repeats beyond 4 gain little (Muennighoff et al., 2305.16264).
Worked: 2 billion tokens at weight 0.3 draw 600 million; of 100 million tokens that is 6 epochs.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel

from model.checkpoint_files import read_state
from model.order import BLOCK_SLOTS, no_text, slots_of
from model.phases import ForkConfig
from model.schedule import rows_of_phase
from tasks.errors import ConfigError
from tasks.fork import find_checkpoint
from tasks.manifest import Manifest, load_manifest
from tasks.recipe import Recipe
from tasks.runs import RunRecord
from tasks.storage import Storage

MANY_EPOCHS = 4.0
PackKey = tuple[str, int, int]  # sub-source, sequence length, min_document_tokens: packs are counted apart


class MixtureLine(BaseModel, frozen=True):
    """One sub-source in one phase. `share` of the phase's tokens, within 0..1; `available`: None if not known."""

    phase: str
    source: str
    share: float
    tokens: int
    drawn: int  # by this phase and those that it continues
    available: int | None
    is_estimate: bool
    epochs: float | None
    warning: str


def mixture_of_run(storage: Storage, record: RunRecord) -> list[MixtureLine]:
    """The mixture of a run; nothing before mix ran."""
    datasets = [(line.stage, line.reference) for line in record.datasets if line.stage in ("mix", "pack", "fork")]
    return mixture_of(storage, Recipe.parse(record.recipe), datasets, record.run_id) if datasets else []


def mixture_of(
    storage: Storage, recipe: Recipe, datasets: Iterable[tuple[str, str | None]], run_id: str | None = None
) -> list[MixtureLine]:
    """The mixture of every phase; `datasets`: (stage, reference) of a run or plan, of which mix and packs are read."""
    packed: dict[PackKey, int] = {}
    estimated: dict[str, int] = {}
    names: dict[PackKey, str] = {}  # of packs, in the counts of a checkpoint
    forks: list[Manifest] = []
    for stage, reference in datasets:
        if reference is None or stage not in ("mix", "pack", "fork"):
            continue
        manifest = load_manifest(storage, reference)
        if stage == "fork":
            forks.append(manifest)
        elif stage == "mix":
            sizes = {name: splits["train"] for name, splits in manifest.extra["sizes"].items()}
            estimated = {name: max(size["estimated_tokens"], size["documents"]) for name, size in sizes.items()}
        elif (request := manifest.config["request"])["split"] == "train":
            key = request["source"], request["sequence_length"], request.get("min_document_tokens", 0)
            packed[key], names[key] = manifest.extra["tokens"], f"{key[0]}:{manifest.digest}"
    before = {
        phase.name: _drawn_before(storage, phase.fork, forks, names, run_id)
        for phase in recipe.train.phases
        if phase.fork
    }
    return mixture_lines(recipe, packed, estimated, before)


def _drawn_before(
    storage: Storage, fork: ForkConfig, taken: Sequence[Manifest], names: Mapping[PackKey, str], run_id: str | None
) -> Counter[PackKey]:
    """Tokens that a checkpoint had drawn of each pack: as it was taken, else as it is now."""
    for facts in (manifest.extra for manifest in taken):
        if fork.run in facts["run"] and fork.phase in (None, facts["phase"]) and fork.step in (None, facts["step"]):
            rows = facts["ordinals"]
            break
    else:
        rows = read_state(storage, find_checkpoint(storage, fork, run_id).key).ordinals
    return Counter({key: rows.get(name, 0) * key[1] for key, name in names.items()})


def mixture_lines(
    recipe: Recipe,
    packed: dict[PackKey, int],
    estimated: dict[str, int],
    before: Mapping[str, Counter[PackKey]] | None = None,
) -> list[MixtureLine]:
    """The lines in the order of phases and sub-sources, from tokens of packs and, where there is none, estimates.

    `before`: tokens of packs that the checkpoints which phases are forks of had read, by phase.
    """
    drawn = dict(before or {})
    lines = []
    for phase in recipe.train.phases:
        drawn[phase.name] = Counter(drawn[phase.parent] if phase.parent else drawn.get(phase.name))
        tokens = rows_of_phase(recipe.train.run_of(phase.name, recipe.model)) * phase.sequence_length
        for source, slots in sorted(slots_of(phase.weights).items()):
            key = source, phase.sequence_length, phase.min_document_tokens
            own = round(tokens * slots / BLOCK_SLOTS)
            drawn[phase.name][key] += own
            available = packed.get(key, estimated.get(source))
            epochs = drawn[phase.name][key] / available if available else None
            line = MixtureLine(
                phase=phase.name, source=source, share=slots / BLOCK_SLOTS, tokens=own,
                drawn=drawn[phase.name][key], available=available,
                is_estimate=key not in packed, epochs=None if epochs is None else round(epochs, 2),
                warning=_warning(epochs, available, recipe.train.max_epochs),
            )  # fmt: skip
            lines.append(line)
    return lines


def check_repeats(recipe: Recipe, lines: Iterable[MixtureLine]) -> None:
    """Raises ConfigError where there is no text, or where packed text is read above `train.max_epochs` times.

    Estimates only warn: of no document there is no token.
    """
    places = {phase.name: index for index, phase in enumerate(recipe.train.phases)}
    lines = list(lines)
    for phase in places:
        if empty := [line.source for line in lines if line.phase == phase and line.available == 0]:
            raise ConfigError(f"train: {no_text(phase, empty)}")
    for line in lines:
        limit = recipe.train.max_epochs
        if line.is_estimate or not line.available or line.drawn <= limit * line.available:
            continue
        most = max(0.0, limit * line.available - (line.drawn - line.tokens)) / line.share
        place = f"train.phases[{places[line.phase]}]"
        raise ConfigError(
            f"{place}.tokens: phase {line.phase} would read source {line.source} {line.drawn / line.available:.2f} "
            f"times ({line.drawn:,} tokens of {line.available:,}); train.max_epochs is {limit:g}: at most "
            f"{int(most):,} tokens with this weight, or a lower {place}.weights.{line.source}"
        )


def _warning(epochs: float | None, available: int | None, max_epochs: float) -> str:
    if available == 0:
        return "no text to train on: training will refuse"
    if epochs is not None and epochs > max_epochs:
        return f"above train.max_epochs {max_epochs:g}: training will refuse"
    return f"above {MANY_EPOCHS:g}: repeats gain little" if epochs is not None and epochs > MANY_EPOCHS else ""
