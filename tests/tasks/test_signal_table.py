"""The table of signals is what the stage writes."""

import pyarrow as pa

from tasks.signal_table import CLASSIFIER, SIGNAL_BY_NAME, SIGNAL_SCHEMA, SIGNALS, with_all_signals
from tasks.signals import SignalsConfig, measure
from tasks.signals.urls import UrlConfig, url_signals


def test_names_are_unique_and_all_are_measured() -> None:
    assert len(SIGNAL_BY_NAME) == len(SIGNALS)
    assert SIGNAL_SCHEMA.names == ["doc_id", *SIGNAL_BY_NAME]
    columns = measure(pa.array(["One text."], pa.large_string()), SignalsConfig()) | url_signals([None], UrlConfig())
    assert columns.keys() == {signal.name for signal in SIGNALS if signal.source != CLASSIFIER}  # those need a model
    assert all(column.type == SIGNAL_SCHEMA.field(name).type for name, column in columns.items())


def test_every_signal_says_what_it_is() -> None:
    for signal in SIGNALS:
        assert signal.unit
        assert signal.meaning
        assert signal.name.startswith("num_") == (signal.type == "int64")
        assert signal.low is None or signal.high is None or signal.low < signal.high
        assert not (signal.of_words and signal.of_ends)


def test_signals_stored_by_an_earlier_version_lack_nothing_but_values() -> None:
    """A report of an old run, or a question to it, meets new signals as not applied."""
    stored = SIGNAL_SCHEMA.empty_table().drop_columns(["num_words", "url_host"])
    stored = pa.concat_tables([stored, pa.table({"doc_id": ["a"]})], promote_options="default")
    completed = with_all_signals(stored)
    assert set(completed.schema.names) == set(SIGNAL_SCHEMA.names)
    assert completed["num_words"].null_count == completed["url_host"].null_count == 1
    assert with_all_signals(SIGNAL_SCHEMA.empty_table()).schema.equals(SIGNAL_SCHEMA)
