"""The exceptions of basemill, and what the scheduler does with each.

PipelineError
├── ConfigError        the recipe or the call is wrong; found before work starts       never retried, exit status 2
├── DataError          the data is wrong, or rows would be lost                        never retried
├── NotComputed        a dry run met a dataset that does not exist yet                 never raised by a real run
├── TrainingDiverged   training halted itself                                          never retried
├── LeaseLost          somebody else computes this dataset now                         never retried
├── Cancelled          the user asked to stop                                          never retried
├── StorageError       disk or object store failed                                     retried with backoff
└── WorkerLost         a worker process or machine died                                retried with backoff
    └── RayNotStarted  Ray did not start here, or a cluster did not answer             retried with backoff
"""


class PipelineError(Exception):
    """Root of everything that basemill raises on purpose."""


class ConfigError(PipelineError):
    """A setting is wrong; the message names its path, the value got and what is allowed."""


class DataError(PipelineError):
    """Data is wrong or would be lost; the message names the part or document."""


class NotComputed(PipelineError):
    """A dry run met a dataset that is not there; `cause` says in a few words why it would be computed."""

    def __init__(self, dataset: str, cause: str) -> None:
        super().__init__(f"{dataset} is not computed yet: {cause}")
        self.dataset = dataset
        self.cause = cause

    def __reduce__(self) -> tuple[type["NotComputed"], tuple[str, str]]:
        return (NotComputed, (self.dataset, self.cause))


class TrainingDiverged(PipelineError):
    """Training stopped itself; starting it again unchanged would end the same way."""


class LeaseLost(PipelineError):
    """Another run holds the lease of this dataset now."""


class Cancelled(PipelineError):
    """The run was cancelled; finished parts stay."""


class StorageError(PipelineError):
    """Disk or object store failed; worth another try."""


class WorkerLost(PipelineError):
    """A worker process died (out of memory, lost machine); worth another try."""


class RayNotStarted(WorkerLost):
    """Ray did not start on this machine, or the cluster in RAY_ADDRESS did not answer; worth another try."""


def in_words(message: str) -> str:
    """What a record says of an error, for people: without the class that it begins with, where it is one of ours."""
    kind, _, rest = message.partition(": ")
    return rest if isinstance(found := globals().get(kind), type) and issubclass(found, PipelineError) else message
