"""Near duplicates: documents whose word 5-grams overlap by a true Jaccard similarity of at least 0.7 with one kept.

Reads documents of all sources; writes documents without near duplicates, and the verified pairs (dataset
`dedup-near.pairs`). Reason: near_duplicate, with the similarity and the document kept instead. Documents too short
for a shingle (fewer than five words) bypass it; dedup-exact has compared them.

Steps: signatures (per part, kept for later runs; signatures.py) -> bands (exchange) -> edges -> components
(candidates.py) -> members (exchange) -> pairs (verify.py) -> decisions (keepers.py) -> the documents. Components only
say who is compared with whom: nothing is dropped for a neighbour's neighbour (plain components drop 19 % of revision
chains that way). Exchange files are removed as soon as the dataset made from them has its manifest; a new input part
costs its own signatures, the exchanges, and the output parts whose decisions changed. Documents of earlier runs can
stand as an index (index.py), so that a daily crawl costs little more than its own size.
"""

from typing import Self

from pydantic import BaseModel, Field, JsonValue, model_validator
from pydantic.config import JsonDict

from tasks.config import Several, check_by_source, for_source
from tasks.dataset import Workspace
from tasks.dedup_near.candidates import connect
from tasks.dedup_near.index import SIGNATURES, index_parts
from tasks.dedup_near.signatures import sign
from tasks.dedup_near.verify import REASON, verify_pairs
from tasks.documents import DOCUMENT_SCHEMA
from tasks.guard_rail import check_dropped_share
from tasks.keepers import PAIRS, apply_by_part, decide_by_part, priorities_of
from tasks.manifest import Manifest

REASONS = frozenset([REASON])
NEUTRAL: JsonDict = {"neutral": []}


class NearDedupConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """How alike two documents must be, and which of them stays. Shingles and bands are fixed (candidates.py)."""

    enabled: bool = Field(default=True, description="false: copy the documents through")
    threshold: float = Field(
        default=0.7, ge=0.5, le=1, description="true Jaccard of word 5-grams from which on a document goes"
    )
    priorities: dict[str, int] = Field(
        default={}, description="of near duplicates, the source with the higher number is kept; 0 where none is given"
    )
    protected: Several[str] = Field(
        default=(), description="sources that lose no document: others are dropped for them", json_schema_extra=NEUTRAL
    )
    index: Several[str] = Field(
        default=(), json_schema_extra=NEUTRAL,
        description="runs, or datasets of this stage, whose documents are there already: what is like them goes",
    )  # fmt: skip
    max_dropped_ratio: float = Field(
        default=0.9, ge=0, le=1, description="a source of 1,000 documents or more that would lose a larger share stops"
    )
    by_source: dict[str, dict[str, JsonValue]] = Field(default={}, description="other values for one source")

    @model_validator(mode="after")
    def _check(self) -> Self:
        return check_by_source(self)


def drop_near_duplicates(documents: Manifest, *index: Manifest, into: Workspace, config: NearDedupConfig) -> Manifest:
    """Documents of all sources -> documents without near duplicates, of each other and of the index.

    index: what `config.index` names, datasets of this stage. Raises DataError where one of them is unfit or changed.
    """
    roles = {f"index {number}" if number else "index": manifest for number, manifest in enumerate(index)}
    dataset = into.dataset(
        "dedup-near", config.model_copy(update={"index": ()}), inputs={"documents": documents, **roles},
        module=__name__, schema=DOCUMENT_SCHEMA, conservation="documents", reasons=REASONS,
    )  # fmt: skip
    if found := dataset.find():
        return found
    settings = {source: for_source(config, source) for source in documents.sources}
    rules = {
        "threshold": config.threshold,
        "priorities": priorities_of(documents, config.priorities, config.protected),
    }
    with dataset.lease():
        old = index_parts(into.storage, index)
        signatures = sign(dataset, documents, {source: own.enabled for source, own in settings.items()})
        components = connect(dataset, signatures, old)
        mean_shingles = signatures.extra["shingles"] / max(1, signatures.totals["rows_out"])
        pairs = verify_pairs(dataset, documents, components, index=old, mean_shingles=mean_shingles, rules=rules)
        decisions = decide_by_part(dataset, "decisions", documents, {"pairs": pairs})
        receipts = apply_by_part(dataset, documents, decisions, threshold=config.threshold)
        check_dropped_share(dataset.stage, receipts, {name: own.max_dropped_ratio for name, own in settings.items()})
        facts = {"too_short": signatures.extra["too_short"], SIGNATURES: signatures.reference, PAIRS: pairs.reference}
        return dataset.publish(receipts, extra={**facts, **components.extra, **pairs.extra})
