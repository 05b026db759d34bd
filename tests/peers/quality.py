"""quality.py - what a recipe reaches in each precision, over seeds, and whether 16 bits cost anything.

quality.py run RECIPE [--seeds 1,2,3] [--precisions 32-true,16-mixed,bf16-mixed] [--peer] [-- options of the recipe]
  appends a line per run to tests/bench/results/quality.jsonl; a run that stands there with the same options is not
  repeated. --peer: PyTorch's float32 from the initial weights and batches of our 32-true, by RECIPE.py --full.
quality.py table
  writes tests/bench/results/quality.md: the means, and the rule |difference| <= max(floor, 2 SD sqrt(2 / n)), where SD
  is that of both columns together (the root of the mean of their variances) and n the smaller number of runs.
"""

import argparse
import collections
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

root = pathlib.Path(__file__).resolve().parents[2]
results = root / "tests/bench/results"
PEER = "PyTorch float32"
COLUMNS = ["32-true", "16-mixed", "bf16-mixed", PEER]

# By recipe: where its data lies; what it prints last (the metric); the floor of the metric; what it is; its options.
RECIPES = {
    "tabular": ("housing/housing.csv", r"R2 of the logarithm (-?[\d.]+)", 0.005, "R2", []),
    "mnist_cnn": ("mnist", r"test accuracy ([\d.]+)", 0.3, "accuracy, %", []),
    "lstm_sentiment": ("sentences", r"test accuracy ([\d.]+)", 0.5, "accuracy, %", []),
    "chorales": ("chorales", r"test: ([\d.]+) nats", 0.005, "nats a note", []),
    "bert": ("sentences", r"test accuracy from scratch ([\d.]+)", 0.5, "accuracy, %", ["--steps", "0"]),
    "char_gpt": ("tinyshakespeare/input.txt", r"validation loss ([\d.]+)", 0.01, "validation loss", ["--sample", "0"]),
    "gpt2": ("tinyshakespeare/input.txt", r"validation loss ([\d.]+)", 0.01, "validation loss", [
        "--dtype", "uint8", "--model", "tiny", "--vocabulary", "256", "--lr", "1e-2", "--min_lr", "1e-3",
        "--steps", "1000", "--warmup", "100", "--valid_every", "1000"]),
    "cifar_resnet": ("cifar10", r"test accuracy ([\d.]+)", 0.3, "accuracy, %", []),
    "cifar_vit": ("cifar10", r"test accuracy ([\d.]+)", 0.3, "accuracy, %", []),
    "cifar_efficientnet": ("cifar10", r"test accuracy of the average ([\d.]+)", 0.3, "accuracy, %", []),
    "unet": ("membrane", r"dice ([\d.]+)", 0.005, "Dice", []),
    "dcgan": ("mnist", r"frechet distance ([\d.]+)", 0.0, "Frechet distance", ["--score"]),
}


def read():
    """All runs that there are, as dicts."""
    path = results / "quality.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add(row):
    with open(results / "quality.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    print(row, flush=True)


def train(recipe, precision, seed, options):
    """One run of the recipe: the metric that it prints last, and the last held-out loss where it prints one."""
    data, pattern, _, _, always = RECIPES[recipe]
    with tempfile.TemporaryDirectory() as folder:
        command = [os.environ.get("GIBBOUS", str(root / "build/gibbous")), "--threads", "1", f"recipes/{recipe}.lua",
                   "--data", os.path.join(os.environ["GIBBOUS_DATA"], data), "--device", "cpu", "--precision",
                   precision, "--seed", str(seed), "--out", os.path.join(folder, "out.safetensors"), *always, *options]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{recipe}: {done.stdout}{done.stderr}")
    text = done.stdout + done.stderr
    losses = re.findall(r"val_loss ([\d.]+)", text)
    return float(re.findall(pattern, text)[-1]), float(losses[-1]) if losses else None


def peer(recipe, seed, options):
    """PyTorch's metric from the same initial weights and batches."""
    command = [sys.executable, f"tests/peers/{recipe}.py", "--full", "--seed", str(seed)]
    done = subprocess.run(command + (["--", *options] if options else []), cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{recipe}: {done.stdout}{done.stderr}")
    return float(re.findall(r"PyTorch (-?[\d.]+)", done.stdout)[-1]), None


def run(args):
    there = {(r["recipe"], r["column"], r["seed"], tuple(r["options"])) for r in read()}
    columns = args.precisions.split(",") + ([PEER] if args.peer else [])
    for seed in map(int, args.seeds.split(",")):
        for column in filter(None, columns):
            if (args.recipe, column, seed, tuple(args.rest)) in there:
                continue
            begun = time.time()
            value, loss = peer(args.recipe, seed, args.rest) if column == PEER else \
                train(args.recipe, column, seed, args.rest)
            add({"recipe": args.recipe, "column": column, "seed": seed, "options": args.rest, "metric": value,
                 "loss": loss, "seconds": round(time.time() - begun)})


def verdict(base, values, floor):
    """The difference from 32-true, what it may be, and whether it is."""
    n = min(len(base), len(values))
    if n < 2:
        return "one run"
    deviation = math.sqrt((statistics.variance(base) + statistics.variance(values)) / 2)
    allowed, far = max(floor, 2 * deviation * math.sqrt(2 / n)), statistics.mean(values) - statistics.mean(base)
    return f"{far:+.4f} of {allowed:.4f}: {'within' if abs(far) <= allowed else '**beyond**'}"


def table():
    """The runs as a page."""
    runs = collections.defaultdict(lambda: collections.defaultdict(dict))
    for r in read():
        runs[r["recipe"], " ".join(r["options"])][r["column"]][r["seed"]] = r
    page = ["# Quality by precision", "",
            "Made by `python tests/peers/quality.py table` from `quality.jsonl`, a line per run. All columns of a seed",
            "share initial weights and the order of data; PyTorch's dropout draws other numbers. The rule is",
            "|difference of means| at most max(floor, 2 SD sqrt(2 / n)). Seconds are those of one thread on a machine that",
            "did other work beside it: they say what a run took, not what it takes.", "",
            "| recipe | measure | | mean | SD | seeds | held-out loss | against 32-true | seconds a run |",
            "|---|---|---|---|---|---|---|---|---|"]
    for (recipe, options), columns in sorted(runs.items()):
        _, _, floor, what, _ = RECIPES[recipe]
        base = [r["metric"] for r in columns.get("32-true", {}).values()]
        for column in COLUMNS:
            rows = columns.get(column, {})
            if not rows:
                continue
            values = [r["metric"] for r in rows.values()]
            losses = [r["loss"] for r in rows.values() if r["loss"] is not None]
            page.append("| " + " | ".join([
                f"{recipe} {options}".strip(), f"{what} (floor {floor:g})", column, f"{statistics.mean(values):.4f}",
                f"{statistics.stdev(values):.4f}" if len(values) > 1 else "", str(len(values)),
                f"{statistics.mean(losses):.4f}" if losses else "",
                "" if column == "32-true" else verdict(base, values, floor),
                f"{statistics.mean(r['seconds'] for r in rows.values()):.0f}"]) + " |")
    (results / "quality.md").write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True, dest="part")
    parts.add_parser("table")
    one = parts.add_parser("run")
    one.add_argument("recipe", choices=RECIPES)
    one.add_argument("--seeds", default="1,2,3")
    one.add_argument("--precisions", default=",".join(COLUMNS[:3]))
    one.add_argument("--peer", action="store_true")
    words, behind = sys.argv[1:], []
    if "--" in words:
        words, behind = words[:words.index("--")], words[words.index("--") + 1:]
    given = parser.parse_args(words)
    given.rest = behind
    table() if given.part == "table" else run(given)
