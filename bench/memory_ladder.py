#!/usr/bin/env python3
"""`make bench-memory`: the memory ladder. Training steps of one model, each rung with one more way to save memory.

Memory is the process's resident peak and the arena's; the price is tokens/s against the first rung, measured in the
same run. Prints a table and writes a list of {name, value, unit, rival, ratio}, rival being the first rung.

Usage: memory_ladder.py [--steps N] [--output build/memory_ladder.json]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = dict(hidden=768, layers=12, heads=12, mlp=2048, vocabulary=32000, sequence=2048, batch=8)
BLOCK = ["--recompute", "block"]
RUNGS = [
    ("nothing recomputed, one loss chunk, fp32 moments", ["--loss-chunks", "1"]),
    ("loss in chunks", []),
    ("norms recomputed", ["--recompute", "norms"]),
    ("gate and up too (mlp)", ["--recompute", "mlp"]),
    ("whole blocks recomputed", BLOCK),
    ("moments in bf16", [*BLOCK, "--moments", "bf16"]),
    ("moments in int8", [*BLOCK, "--moments", "int8"]),
    ("gradients consumed in backward", [*BLOCK, "--moments", "int8", "--consume-gradients"]),
]


def measure(arguments, words):
    model = [w for name, value in MODEL.items() for w in ("--" + name, str(value))]
    command = [str(arguments.yoke_bench), *model, "--warmup", "0", "--steps", str(arguments.steps),
               "--threads", str(arguments.threads), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(command)}\n{done.stderr[-2000:]}")
    return {line["name"]: line["value"] for line in map(json.loads, done.stdout.splitlines())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1, help="timed steps of 16384 tokens a rung; the median counts")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--yoke-bench", type=pathlib.Path, default=ROOT / "build/yoke_bench")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/memory_ladder.json")
    arguments = parser.parse_args()

    print(f"134M parameters, bf16, sequence {MODEL['sequence']}, micro-batch {MODEL['batch']}")
    print(f"  {'':50}{'arena MiB':>10}{'of first':>10}{'resident':>10}{'tokens/s':>10}{'of first':>10}")
    results, first = [], None
    for name, words in RUNGS:
        values = measure(arguments, words)
        first = first or values
        print(f"  {name:50}{values['arena_bytes'] / 2**20:10.0f}{values['arena_bytes'] / first['arena_bytes']:10.3f}"
              f"{values['resident_bytes'] / 2**20:10.0f}{values['tokens_per_second']:10.0f}"
              f"{values['tokens_per_second'] / first['tokens_per_second']:10.3f}", flush=True)
        for key, unit in (("arena_bytes", "bytes"), ("tokens_per_second", "tokens/s")):
            results.append({"name": f"{name}: {key}", "value": values[key], "unit": unit, "rival": first[key],
                            "ratio": values[key] / first[key]})
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
