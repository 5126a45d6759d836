#!/usr/bin/env python3
"""`make bench-parallel`: what two ranks on two cores cost and gain, beside PyTorch's DistributedDataParallel over gloo.

All rivals are started first and then take turns, one optimizer step each, so that a machine that slows down slows all of
them; a step's first turn warms up, of the others the medians count. All steps have the same tokens in micro-batches of
the same size: `--micro-batches` of them on one rank, half of them on each of two. Prints a table and writes a list of
{name, value, unit, rival, ratio}.

Usage: parallel.py [--model 134m] [--rounds 3] [--rivals "yoke 1 rank,yoke 2 ranks zero 0"] [--output FILE]
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from bench import MODELS, ROOT

# Name: what it is measured against, and the least it is meant to reach.
GOALS = {
    "yoke 2 ranks zero 0": ("yoke 1 rank", 0.95),
    "yoke 2 ranks zero 1": ("yoke 2 ranks zero 0", 0.95),
    "yoke 2 ranks zero 2": ("yoke 2 ranks zero 0", 0.95),
    "yoke 2 ranks zero 3": ("yoke 2 ranks zero 0", 0.85),
    "PyTorch 2 ranks DDP": ("PyTorch 1 rank", None),
}
RIVALS = ["yoke 1 rank", *GOALS, "PyTorch 1 rank"]


class Rival:
    """Processes that make a step when told to."""

    def __init__(self, name, folder, arguments):
        self.name = name
        self.ranks = 2 if "2 ranks" in name else 1
        self.steps = []
        pipes = folder / name.replace(" ", "-")
        for rank in range(self.ranks):
            os.mkfifo(f"{pipes}.{rank}")
        self.processes = []
        for command in self.commands(pipes, arguments):
            environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads // self.ranks))
            output = subprocess.DEVNULL if self.processes else subprocess.PIPE
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, text=True,
                                                   env=environment))
        # Opening waits for the other side: it has started when this is through, or it never will.
        self.pipes = [self.open(f"{pipes}.{rank}") for rank in range(self.ranks)]

    def commands(self, pipes, arguments):
        model = [w for name, value in MODELS[arguments.model].items() for w in ("--" + name, str(value))]
        words = [*model, "--micro-batches", str(arguments.micro_batches // self.ranks), "--turns", str(pipes),
                 "--threads", str(arguments.threads // self.ranks)]
        if self.name.startswith("PyTorch"):
            rival = ["/usr/bin/python3", str(ROOT / "bench/torch_rival.py"), *words, "--ranks", str(self.ranks),
                     "--meeting", f"{pipes}.meeting"]
            return [[*rival, "--rank", str(rank)] for rank in range(self.ranks)]
        rival = [str(arguments.yoke_bench), *words, *(["--profile"] if arguments.profile else [])]
        if self.ranks == 1:
            return [rival]
        # As `yoke train` starts its ranks.
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        mpirun = ["mpirun", "-n", str(self.ranks), *root, "--oversubscribe", "--bind-to", "none"]
        return [[*mpirun, *rival, "--zero", self.name[-1]]]

    def open(self, path):
        while True:
            try:
                return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # nobody reads yet
                self.check()
                subprocess.run(["sleep", "0.1"], check=True)

    def check(self):
        for process in self.processes:
            if process.poll() is not None:
                sys.exit(f"{self.name}: ended with {process.returncode}")

    def step(self, counts):
        for pipe in self.pipes:
            os.write(pipe, b"s")
        while True:
            line = self.processes[0].stdout.readline()
            if not line:
                sys.exit(f"{self.name}: ended in the middle of a step")
            values = json.loads(line)
            if values["name"] == "waited_seconds" and counts:
                self.waited = values["value"]
            if values["name"] == "tokens_per_second":
                break
        if counts:
            self.steps.append(values["value"])

    def speed(self):
        return statistics.median(self.steps)

    def end(self):
        for pipe in self.pipes:
            os.close(pipe)
        for process in self.processes:
            process.wait(timeout=60)

    waited = None  # the last step's, for collectives


def report(rivals, results):
    """Prints the table and fills in the results."""
    speeds = {rival.name: rival.speed() for rival in rivals}
    print(f"  {'':24}{'tokens/s':>9}  {'all steps':30}{'waited s':>9}   against")
    for rival in rivals:
        steps = " ".join(f"{s:.0f}" for s in rival.steps)
        waited = "" if rival.waited is None else f"{rival.waited:.2f}"
        base, goal = GOALS.get(rival.name, (None, None))
        text = ""
        if base in speeds:
            ratio = speeds[rival.name] / speeds[base]
            text = f"{ratio:6.1%} of {base}" + (f" (at least {goal:.0%})" if goal else "")
            results.append({"name": rival.name, "value": speeds[rival.name], "unit": "tokens/s", "rival": speeds[base],
                            "ratio": ratio})
        print(f"  {rival.name:24}{speeds[rival.name]:9.1f}  {steps:30}{waited:>9}   {text}")
    for ours, theirs in (("yoke 1 rank", "PyTorch 1 rank"), ("yoke 2 ranks zero 0", "PyTorch 2 ranks DDP")):
        if ours in speeds and theirs in speeds:
            ratio = speeds[ours] / speeds[theirs]
            print(f"  {ours} / {theirs}: speed x {ratio:.2f}")
            results.append({"name": f"{ours}, rival {theirs}", "value": speeds[ours], "unit": "tokens/s",
                            "rival": speeds[theirs], "ratio": ratio})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="134m")
    parser.add_argument("--micro-batches", type=int, default=4, help="of a step, of all ranks together")
    parser.add_argument("--rounds", type=int, default=3, help="timed steps of each rival")
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of all ranks together")
    parser.add_argument("--profile", action="store_true", help="yoke's seconds by operation, on standard error")
    parser.add_argument("--yoke-bench", type=pathlib.Path, default=ROOT / "build/yoke_bench")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/bench_parallel.json")
    arguments = parser.parse_args()
    names = arguments.rivals.split(",")
    unknown = [name for name in names if name not in RIVALS]
    if unknown:
        sys.exit(f"no rival {', '.join(unknown)}; there are: {', '.join(RIVALS)}")
    if arguments.micro_batches % 2 or arguments.threads < 2:
        sys.exit("two ranks want an even number of micro-batches and at least 2 threads")
    if not arguments.yoke_bench.exists():
        sys.exit(f"{arguments.yoke_bench} is missing: build it first, or run `make bench-parallel`")

    size = MODELS[arguments.model]
    tokens = arguments.micro_batches * size["batch"] * size["sequence"]
    print(f"{arguments.model}, bf16, sequence {size['sequence']}, micro-batch {size['batch']}, {tokens} tokens a step, "
          f"{arguments.threads} cores", flush=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="yoke-bench-"))
    results, rivals = [], []
    try:
        for name in names:
            rivals.append(Rival(name, folder, arguments))
        for turn in range(arguments.rounds + 1):
            # There and back, so that nobody always follows the same one.
            for rival in rivals if turn % 2 == 0 else reversed(rivals):
                rival.step(counts=turn > 0)
        for rival in rivals:
            rival.end()
    finally:
        for rival in rivals:
            for process in rival.processes:
                if process.poll() is None:
                    process.terminate()
        shutil.rmtree(folder)
    report(rivals, results)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
