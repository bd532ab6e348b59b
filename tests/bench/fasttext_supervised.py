"""fastText's supervised classifier in a process of its own: `python fasttext_supervised.py FOLDER`, FOLDER/data.json.

Reads {"train": [[text, label], ...], "test": [text, ...], "speed": [text, ...]}; prints {"scores": probability of label
1 per test text, "train_seconds", "predict_seconds"} (CPU, one thread). Texts are lower-cased with punctuation set
apart, as fastText's own preparation of labelled text does; that is not timed.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import fasttext  # type: ignore[import-untyped,import-not-found,unused-ignore]


def line_of(text: str) -> str:
    """One line of tokens."""
    return " ".join(re.sub(r"([^\w\s])", r" \1 ", text.lower()).split()) + "\n"


def main(folder: Path) -> None:
    """Train, score, and time scoring."""
    data = json.loads((folder / "data.json").read_text())
    lines = [f"__label__{label} {line_of(text)}" for text, label in data["train"]]
    (folder / "train.txt").write_text("".join(lines))
    started = time.process_time()
    model = fasttext.train_supervised(
        str(folder / "train.txt"), epoch=10, lr=0.5, wordNgrams=2, bucket=1 << 20, minCount=1, thread=1, verbose=0
    )
    trained = time.process_time()
    scores = [probability(model, line_of(text)) for text in data["test"]]
    speed = [line_of(text) for text in data["speed"]]
    before = time.process_time()
    for line in speed:
        probability(model, line)
    seconds = time.process_time() - before
    print(json.dumps({"scores": scores, "train_seconds": trained - started, "predict_seconds": seconds}))


def probability(model: Any, line: str) -> float:
    """Of label 1. The binding's own `predict` fails with numpy 2, so the object below it is asked."""
    found = {label: value for value, label in model.f.predict(line, 2, 0.0, "strict")}
    return float(found.get("__label__1", 0.0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
