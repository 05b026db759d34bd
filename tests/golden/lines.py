"""Golden files: one line per case, so that branches which add cases merge, and a changed case is a changed line.

KIND/FAMILY.jsonl holds a JSON object per line, sorted by "name". A tensor is a string: its dtype, its shape in
brackets, then its elements in row-major order, each with as many digits as bring back its bits. "x*n" stands for n
times x, and "." for the element of the tensor that this one was made from. `tests/lua/goldens.lua` reads them.

The bits of a result depend on the build of PyTorch and on how it sums, so its plain kernels run, on one thread: the same
bits on other processors of a kind.
"""
import argparse
import itertools
import json
import os
import sys

os.environ["ATEN_CPU_CAPABILITY"] = "default"  # PyTorch reads it when it is imported
os.environ["MKL_CBWR"] = "COMPATIBLE"

import torch

MADE_WITH = "2.15.0"
FOLDER = os.path.dirname(os.path.abspath(__file__))

torch.set_num_threads(1)
torch.backends.mkldnn.enabled = False


def digits(value):
    """The shortest text of a number that reads back as its bits; NumPy's scalars know their own precision."""
    text = str(value)
    return text[:-2] if text.endswith(".0") and text != "-0.0" else text


def tensor(t, base=None):
    """float64[2,3] 1 -0.5 inf nan 0*2; what is as in `base`, if there is one, is not said again."""
    t = t.detach()
    words = [digits(x) for x in (t.int() if t.dtype == torch.bool else t).reshape(-1).numpy()]
    if base is not None:
        words = ["." if word == old else word for word, old in zip(words, map(digits, base.reshape(-1).numpy()))]
    runs = [(word, len(list(run))) for word, run in itertools.groupby(words)]
    words = [f"{word}*{n}" if n > 2 else " ".join([word] * n) for word, n in runs]
    return " ".join([f"{str(t.dtype)[6:]}[{','.join(map(str, t.shape))}]", *words])


def by_name(text):
    return {json.loads(line)["name"]: line for line in text.splitlines()}


def differences(old, new):
    """What a check reports, a line for each case. A merge may leave lines in another order, which says nothing."""
    if len(old.splitlines()) > len(by_name(old)):
        yield "two lines of one name"
    old, new = by_name(old), by_name(new)
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            yield f"{name}: no case makes it"
        elif name not in old:
            yield f"{name}: is not there"
        elif old[name] != new[name]:
            yield f"{name}: other numbers"


def main(kind, families, rows_of):
    """Write or check KIND/FAMILY.jsonl for the families that the command line names, or all. rows_of(family) lists
    what makes the lines."""
    parser = argparse.ArgumentParser(description=f"Make tests/golden/{kind}/FAMILY.jsonl.")
    parser.add_argument("family", nargs="*", help=f"of {', '.join(families)}; all if none is named")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file holds anything else")
    arguments = parser.parse_args()
    unknown = set(arguments.family) - set(families)
    if unknown:
        parser.error(f"there are no such families: {', '.join(sorted(unknown))}")
    if torch.__version__.split("+")[0] != MADE_WITH:
        print(f"note: made with PyTorch {MADE_WITH}, this is {torch.__version__}: digits may differ", file=sys.stderr)
    bad = False
    for family in arguments.family or families:
        rows = sorted(rows_of(family), key=lambda row: row["name"])
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        path = os.path.join(FOLDER, kind, family + ".jsonl")
        old = open(path).read() if os.path.exists(path) else ""
        if arguments.check:
            for line in differences(old, text):
                print(f"{kind}/{family}.jsonl: {line}")
                bad = True
        elif old != text:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)
        print(f"{kind}/{family}.jsonl: {len(rows)} lines, {len(text)} bytes{'' if old != text else ', as it was'}")
    sys.exit(bad)
