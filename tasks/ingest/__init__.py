"""Raw files to documents (stage ingest): see stage.py for the stage, sources.py for its settings."""

from tasks.ingest.sources import IngestConfig, InputFile, InputFiles, SourceConfig, list_inputs
from tasks.ingest.stage import ingest_sources

__all__ = ["IngestConfig", "InputFile", "InputFiles", "SourceConfig", "ingest_sources", "list_inputs"]
