"""Encoding: MB of text per CPU-second of gigatoken as we call it, beside HF tokenizers on the same texts.

`pytest tests/bench/bench_encode.py -m bench -s` prints one line: ours, peer, ratio, target.
"""

import inspect
import sys
import time

import pytest
from tokenizers import Tokenizer

from tasks.encoding import Encoder, choose_engine
from tasks.vocabulary import VocabularyConfig, train_bpe

TARGET_RATIO = 30
NUM_BYTES = 12_000_000
PEER_BYTES = 2_000_000  # HF is timed on the first of these: it keeps no cache between texts


def standard_library_texts() -> list[str]:
    """Sources and docstrings of the modules that this process has loaded: text that every machine has."""
    texts, held = [], 0
    for name in sorted(sys.modules):
        try:
            source = inspect.getsource(sys.modules[name])
        except (OSError, TypeError):
            continue
        texts.append(source)
        held += len(source)
        if held > NUM_BYTES:
            break
    return texts


@pytest.mark.bench
def test_encoding_against_hf_tokenizers() -> None:
    """Fresh text, cold cache, one thread each; ids are compared on what HF encodes."""
    texts = standard_library_texts()
    tokenizer = train_bpe(texts[::5], VocabularyConfig(size=32_768)).to_str().encode()
    assert choose_engine(tokenizer) == "gigatoken"
    encoder = Encoder(tokenizer, "gigatoken")
    start = time.process_time()
    ids, lengths = encoder.encode(texts)
    ours = sum(len(text.encode()) for text in texts) / 1e6 / (time.process_time() - start)

    count, held = 0, 0
    while count < len(texts) and held < PEER_BYTES:
        held += len(texts[count].encode())
        count += 1
    reference: Tokenizer = encoder.reference
    start = time.process_time()
    wanted = [reference.encode(text, add_special_tokens=False).ids for text in texts[:count]]
    peer = held / 1e6 / (time.process_time() - start)
    assert [index for own in wanted for index in own] == ids[: int(lengths[:count].sum())].tolist()
    print(f"\nencode: {ours:.1f} MB/s, HF tokenizers {peer:.2f} MB/s, ratio {ours / peer:.0f}, target {TARGET_RATIO}")
    assert ours / peer > 1
