#!/usr/bin/env python3
"""`make bench`: yoke beside PyTorch, the same model, batch and optimizer on the same machine in one run.

Each measurement is a process of its own, so that its peak memory is its own; yoke and its rivals take turns. FLOPs are
counted once, here, for both: 6 (P - E) + 6 L s n d a token (causal attention counted once, the untied embedding left
out). Prints a table and writes a list of {name, value, unit, rival, ratio}.

Usage: bench.py [--python PATH ...] [--models 134m,25m] [--output build/bench.json]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = {
    "134m": dict(hidden=768, layers=12, heads=12, mlp=2048, vocabulary=32000, sequence=512, batch=2),
    "25m": dict(hidden=288, layers=6, heads=6, mlp=768, vocabulary=32000, sequence=256, batch=8),
}


def flops_per_token(m):
    h = m["hidden"]
    products = m["layers"] * (4 * h * h + 3 * h * m["mlp"]) + m["vocabulary"] * h
    norms = (2 * m["layers"] + 1) * h
    return 6 * (products + norms) + 6 * m["layers"] * m["sequence"] * h


def arguments_of(model, arguments):
    words = [w for name, value in MODELS[model].items() for w in ("--" + name, str(value))]
    return words + ["--threads", str(arguments.threads), "--steps", str(arguments.steps), "--warmup", "2"]


def run(command):
    """Standard output of a command, or None with its complaint on standard error."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        print(f"  failed: {' '.join(command)}\n{done.stderr[-2000:]}", file=sys.stderr)
        return None
    return done.stdout


def yoke(model, precision, arguments):
    output = run([str(arguments.yoke_bench), "--precision", precision, *arguments_of(model, arguments)])
    if output is None:
        return None
    values = {line["name"]: line["value"] for line in map(json.loads, output.splitlines())}
    return {"label": f"yoke {precision}", "tokens_per_second": values["tokens_per_second"],
            "memory": values["resident_bytes"], "peak_gflops": values["peak_gflops"]}


def pytorch(python, model, precision, compiled, arguments):
    command = [python, str(ROOT / "bench/torch_rival.py"), "--precision", precision, *arguments_of(model, arguments)]
    output = run(command + (["--compile"] if compiled else []))
    if output is None:
        return None
    values = json.loads(output.splitlines()[-1])
    kind = {"fp32": "fp32", "bf16": "bf16 autocast", "bf16-weights": "bf16 weights"}[precision]
    version = values["torch"].split("+")[0]
    return {"label": f"PyTorch {version} {kind}{' compiled' if compiled else ''}", "precision": precision,
            "tokens_per_second": values["tokens_per_second"], "memory": values["peak_memory_bytes"]}


def rivals_of(python):
    """[(precision, compiled)] that this interpreter's PyTorch can do; [] without PyTorch."""
    version = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    if version.returncode != 0:
        print(f"{python} has no PyTorch: {version.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return []
    kinds = [("fp32", False), ("bf16", False), ("bf16-weights", False)]
    return kinds + ([("fp32", True), ("bf16", True)] if int(version.stdout.split(".")[0]) >= 2 else [])


def report(model, ours, theirs, results):
    """Prints one model's table and appends its results."""
    flops = flops_per_token(MODELS[model])
    size = MODELS[model]
    print(f"\n{model}: hidden {size['hidden']}, {size['layers']} layers, {size['heads']} heads, MLP {size['mlp']}, "
          f"vocabulary {size['vocabulary']}, sequence {size['sequence']}, batch {size['batch']}")
    print(f"  {'':38}{'tokens/s':>10}{'GFLOP/s':>10}{'of peak':>9}{'memory MiB':>12}")
    for row in ours + theirs:
        gflops = row["tokens_per_second"] * flops / 1e9
        share = f"{100 * gflops / row['peak_gflops']:7.0f} %" if "peak_gflops" in row else ""
        print(f"  {row['label']:38}{row['tokens_per_second']:10.0f}{gflops:10.0f}{share:>9}{row['memory'] / 2**20:12.0f}")

    for row in ours:
        prefix = f"{model} {row['label']}"
        gflops = row["tokens_per_second"] * flops / 1e9

        def add(name, value, unit, rival=None):
            ratio = value / rival if rival else None
            results.append({"name": f"{prefix}: {name}", "value": value, "unit": unit, "rival": rival, "ratio": ratio})

        add("matrix product rate", gflops, "GFLOP/s", row["peak_gflops"])
        for other in theirs:
            add(f"speed, rival {other['label']}", row["tokens_per_second"], "tokens/s", other["tokens_per_second"])
            add(f"peak memory, rival {other['label']}", row["memory"], "bytes", other["memory"])
    best = ours[0]
    for other in theirs:
        print(f"  {best['label']} / {other['label']}: speed x {best['tokens_per_second'] / other['tokens_per_second']:.2f}, "
              f"memory x {best['memory'] / other['memory']:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="interpreter with another PyTorch, beside Debian's")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--precisions", default="bf16,fp32", help="of yoke's rows")
    parser.add_argument("--steps", type=int, default=7, help="timed steps; the median counts")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--yoke-bench", type=pathlib.Path, default=ROOT / "build/yoke_bench")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/bench.json")
    arguments = parser.parse_args()
    if not arguments.yoke_bench.exists():
        sys.exit(f"{arguments.yoke_bench} is missing: build it first, or run `make bench`")
    unknown = set(arguments.models.split(",")) - set(MODELS)
    if unknown:
        sys.exit(f"no model {', '.join(sorted(unknown))}; there are: {', '.join(MODELS)}")

    pythons = ["/usr/bin/python3", *(arguments.python or [])]
    plans = [(python, *kind) for python in pythons for kind in rivals_of(python)]
    results = []
    for model in arguments.models.split(","):
        print(f"measuring {model}, {arguments.threads} threads ...", flush=True)
        ours = [yoke(model, precision, arguments) for precision in arguments.precisions.split(",")]
        theirs = [pytorch(python, model, precision, compiled, arguments) for python, precision, compiled in plans]
        ours, theirs = [r for r in ours if r], [r for r in theirs if r]
        if not ours:
            sys.exit("yoke's benchmark failed")
        report(model, ours, theirs, results)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwrote {arguments.output}")


if __name__ == "__main__":
    main()
