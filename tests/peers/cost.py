"""cost.py - what a step of each recipe costs in each precision, beside PyTorch.

cost.py run RECIPE... [--rounds 3] [--steps 9]
  runs the recipe in three precisions and its peer in float32 and bfloat16 (pictures: in both memory formats), one
  after the other and so for some rounds, and writes the medians to tests/bench/results/cost.jsonl, a line per recipe
  in the place of an older one. Each run is a process of its own on one thread; what is measured is processor time,
  which work beside it disturbs least. Dropout and augmentation are off.
cost.py table
  writes tests/bench/results/cost.md.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parents[2]
results = root / "tests/bench/results"
OURS = ["32-true", "16-mixed", "bf16-mixed"]

# By recipe: its data, and what switches dropout and augmentation off (which a peer does by itself).
RECIPES = {
    "mnist_cnn": ("mnist", []),
    "cifar_resnet": ("cifar10", ["--no-augment"]),
    "cifar_efficientnet": ("cifar10", ["--no-augment", "--dropout", "0", "--drop_path", "0"]),
    "cifar_vit": ("cifar10", ["--no-augment", "--mixup", "0", "--drop_path", "0"]),
    "unet": ("membrane", ["--no-augment"]),
    "dcgan": ("mnist", []),
    "bert": ("sentences", ["--steps", "0", "--dropout", "0"]),
    "lstm_sentiment": ("sentences", ["--dropout", "0"]),
    "chorales": ("chorales", ["--dropout", "0"]),
    "tabular": ("housing/housing.csv", []),
    "char_gpt": ("tinyshakespeare/input.txt", ["--sample", "0"]),
    "gpt2": ("tinyshakespeare/input.txt", ["--dtype", "uint8", "--model", "tiny", "--vocabulary", "256"]),
}
PICTURES = {"mnist_cnn", "cifar_resnet", "cifar_efficientnet", "cifar_vit", "unet", "dcgan"}


def numbers(command):
    """What a run prints as `name = value`."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", GIBBOUS_PEER_THREADS="1")
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return {name: float(value) for name, value in re.findall(r"^(\w+) = ([\d.]+)$", done.stdout, re.M)}


def columns(recipe):
    """The runs of a recipe by name: a function that does one and gives its numbers."""
    def ours(precision):
        data, plain = RECIPES[recipe]
        return lambda steps: numbers([
            os.environ.get("GIBBOUS", str(root / "build/gibbous")), "--threads", "1", "tests/peers/cost.lua",
            f"recipes/{recipe}.lua", str(steps), "--data", os.path.join(os.environ["GIBBOUS_DATA"], data), "--device",
            "cpu", "--precision", precision, "--out", "", *plain])

    def theirs(setting):
        return lambda steps: numbers([
            sys.executable, f"tests/peers/{recipe}.py", "--steps", str(steps), "--cost", setting])
    formats = ["", "-last"] if recipe in PICTURES else [""]
    found = {precision: ours(precision) for precision in OURS}
    found.update({f"{dtype}{last}": theirs(f"{dtype}{last}") for dtype in ["float32", "bfloat16"] for last in formats})
    return found


def operations(recipe):
    """Billions of operations in the products and convolutions of a step, by the audit."""
    data, plain = RECIPES[recipe]
    return numbers([
        os.environ.get("GIBBOUS", str(root / "build/gibbous")), "--threads", "1", "tests/peers/cost.lua",
        f"recipes/{recipe}.lua", "9", "--count", "--data", os.path.join(os.environ["GIBBOUS_DATA"], data), "--device",
        "cpu", "--precision", "32-true", "--out", "", *plain])["operations"]


def rates():
    """Billions of operations a second of one large product here, by dtype: what no step exceeds by products alone."""
    script = """
        local gb = require "gibbous"
        for _, dtype in ipairs { "float32", "bfloat16" } do
          local a, b, best = gb.randn(640, 1024):to(dtype), gb.randn(1024, 256):to(dtype), math.huge
          for i = 1, 60 do
            local began = os.clock()
            a:matmul(b)
            best = math.min(best, os.clock() - began)
          end
          print(("%s = %.2f"):format(dtype, 2 * 640 * 1024 * 256 / best / 1e9))
        end"""
    return numbers([os.environ.get("GIBBOUS", str(root / "build/gibbous")), "--threads", "1", "-e", script])


def run(args):
    path = results / "cost.jsonl"
    for recipe in args.recipes:
        runs, rounds = columns(recipe), {}
        for _ in range(args.rounds):
            for name, once in runs.items():
                rounds.setdefault(name, []).append(once(args.steps))
        row = {"recipe": recipe, "processor": processor(), "rounds": args.rounds, "operations": operations(recipe),
               "rates": rates(), "columns": {
            name: {key: statistics.median(one[key] for one in found) for key in found[0]}
            for name, found in rounds.items()}}
        kept = [line for line in path.read_text().splitlines()
                if json.loads(line)["recipe"] != recipe] if path.exists() else []
        path.write_text("\n".join(sorted([*kept, json.dumps(row)])) + "\n")
        print(json.dumps(row), flush=True)


def processor():
    """The model of the processor, and which of its vector units matter here."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", text)
    units = [unit for unit in ["avx2", "avx512f", "avx512_bf16", "amx_bf16"] if re.search(rf"\b{unit}\b", text)]
    return " ".join([model.group(1) if model else platform.machine(), *units])


def table():
    rows = [json.loads(line) for line in (results / "cost.jsonl").read_text().splitlines()]
    lines = ["# What a step of each recipe costs", "",
             "Made by `python tests/peers/cost.py table` from `cost.jsonl`: one thread, milliseconds of processor time",
             "of a step (median of the rounds' medians), without dropout and augmentation. PyTorch's is the better of its",
             "two memory formats. Ratios: 32-true to PyTorch's float32, bf16-mixed to its bfloat16 autocast, and",
             "bf16-mixed to our 32-true. Saved: what lies saved for backward at most. Peak: of the whole process in",
             "MB; PyTorch's has its libraries (some 740 MB) and the batches of its steps in it. Products: the time that the",
             "operations of a step's products and convolutions, as the audit counts them, would take at the rate of one",
             "large product, over PyTorch's step: what no work beside them can go below. Convolutions of 3 x 3 may, by",
             "Winograd's algorithm.", "",
             "| recipe | 32-true | 16-mixed | bf16-mixed | PyTorch float32 | bfloat16 | 32-true ratio | products | bf16 ratio |"
             " products | bf16 / 32 | saved MB, 32 | saved, bf16 | peak 32 | peak bf16 | peak PyTorch |",
             "|---|" + "---|" * 15]
    for row in rows:
        c = row["columns"]

        def best(dtype):
            return min((c[name] for name in c if name.startswith(dtype)), key=lambda one: one["step"])

        def alone(dtype):
            return 1e3 * row["operations"] / row["rates"][dtype]
        full, short = best("float32"), best("bfloat16")
        lines.append("| {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |"
                     " {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.1f} | {:.2f} |"
                     " {:.0f} | {:.0f} | {:.0f} |".format(
                         row["recipe"], *(c[p]["step"] for p in OURS), full["step"], short["step"],
                         c["32-true"]["step"] / full["step"], alone("float32") / full["step"],
                         c["bf16-mixed"]["step"] / short["step"], alone("bfloat16") / short["step"],
                         c["bf16-mixed"]["step"] / c["32-true"]["step"], c["32-true"]["saved"],
                         c["bf16-mixed"]["saved"] / c["32-true"]["saved"], c["32-true"]["peak"],
                         c["bf16-mixed"]["peak"], full["peak"]))
    counts = [row["rounds"] for row in rows]
    lines += ["", "Measured on " + "; ".join(sorted({row["processor"] for row in rows})) + ", on two cores with one to three other jobs.",
              f"Rounds of a recipe: {min(counts)} to {max(counts)}."]
    (results / "cost.md").write_text("\n".join(lines) + "\n")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", choices=["run", "table"])
parser.add_argument("recipes", nargs="*", choices=[*RECIPES, []])
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--steps", type=int, default=9)
args = parser.parse_args()
if args.what == "table":
    table()
elif "GIBBOUS_DATA" not in os.environ:
    sys.exit("GIBBOUS_DATA names the folder of the data")
else:
    args.recipes = args.recipes or list(RECIPES)
    run(args)
