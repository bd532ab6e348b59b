"""The table of signals is what the stage writes."""

import pyarrow as pa

from tasks.signal_table import CLASSIFIER, SIGNAL_BY_NAME, SIGNAL_SCHEMA, SIGNALS
from tasks.signals import SignalsConfig, measure


def test_names_are_unique_and_all_are_measured() -> None:
    assert len(SIGNAL_BY_NAME) == len(SIGNALS)
    assert SIGNAL_SCHEMA.names == ["doc_id", *SIGNAL_BY_NAME]
    columns = measure(pa.array(["One text."], pa.large_string()), SignalsConfig())
    assert columns.keys() == {signal.name for signal in SIGNALS if signal.source != CLASSIFIER}  # those need a model
    assert all(column.type == SIGNAL_SCHEMA.field(name).type for name, column in columns.items())


def test_every_signal_says_what_it_is() -> None:
    for signal in SIGNALS:
        assert signal.unit
        assert signal.meaning
        assert signal.name.startswith("num_") == (signal.type == "int64")
        assert signal.low is None or signal.high is None or signal.low < signal.high
        assert not (signal.of_words and signal.of_ends)
