#!/usr/bin/env python3
"""Several ranks of the real program on this machine: what a plain mpirun starts, ranks that are lost, stuck or slow, and ranks
that don't belong together. Needs no root.

Usage: ranks_test.py YOKE [NAME...]   names of tests; all by default
"""
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time

import support
from support import check, run, text_of, wait_until

ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"]
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec* t) {
  static int (*real)(clockid_t, struct timespec*);
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(id, t);
  if (id == CLOCK_REALTIME) t->tv_sec += atol(getenv("CLOCK_AHEAD"));
  return code;
}
"""


class Job:
    """A command in the background, its output in a file."""

    def __init__(self, words, log):
        self.log = log
        with open(log, "w") as out:
            self.process = subprocess.Popen([str(w) for w in words], stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                                            env=ENVIRONMENT)

    @property
    def text(self):
        return text_of(self.log)

    def until(self, part, seconds=120):
        def there():
            check(part in self.text or self.process.poll() is None, f"ended before '{part}': {self.text}")
            return part in self.text
        wait_until(there, seconds, part)

    def wait(self, seconds=120):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"not ended within {seconds} s: {self.text}") from None


class Tests:
    def __init__(self, yoke, folder):
        self.yoke, self.folder, self.host = yoke, folder, os.uname().nodename
        self.log = folder / "log"

    def metrics(self, run_folder):
        lines = (run_folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def train(self, recipe, *options, seconds=240):
        """yoke starts its ranks itself."""
        job = Job([self.yoke, "train", recipe, *options], self.log)
        return job.wait(seconds), job.text

    def mpirun(self, *programs, seconds=120):
        """Each program: words of one rank, or of so many as its first word says."""
        words = list(MPIRUN)
        for i, program in enumerate(programs):
            words += [":"] if i else []
            words += ["-n", program[0], *program[1:]]
        job = Job(words, self.log)
        return job.wait(seconds), job.text

    def refused(self, ending, code, *parts):
        found, text = ending
        check(found == code, f"exit code {found}, not {code}: {text}")
        said = [line for line in text.splitlines() if line.startswith("yoke: ")]
        check(len(said) == 1, f"not said once: {text}")
        for part in parts:
            check(part in text, f"'{part}' is not in: {text}")

    # What starts ranks, and their log.

    def test_plain_mpirun_trains_as_yoke_train(self):
        recipe = support.write_recipe(self.folder, "plain", steps=12)
        code, text = self.mpirun([4, self.yoke, "train", recipe])
        check(code == 0, text)
        check(text.count("first samples: data 0 ") == 1 and " data 3 " in text, f"no hashes of the samples: {text}")
        check(text.count("step 12/12") == 1, f"not one log: {text}")
        check(not any(line.startswith("rank ") for line in text.splitlines()), f"a tag where nothing differs: {text}")
        code, text = self.train(recipe, "--output", self.folder / "own", "--parallel.data", 4)
        check(code == 0, text)
        check(support.losses(self.folder / "own") == support.losses(self.folder / "plain"), "losses differ")

    def test_learning_rates_and_lengths_do_not_depend_on_ranks(self):
        for schedule in (["--train.schedule", "cosine"], ["--train.schedule", "linear"],
                         ["--train.schedule", "wsd", "--train.decay_steps", 3]):
            curves = []
            for ranks in (1, 2, 4):
                name = f"{schedule[1]}{ranks}"
                recipe = support.write_recipe(self.folder, name, steps=9)
                # No multiple of the batch: the last step of the run is a partial one.
                recipe.write_text(recipe.read_text().replace("steps: 9", "epochs: 0.1, warmup: 3"))
                code, text = self.train(recipe, "--parallel.data", ranks, "--parallel.zero", 0, *schedule)
                check(code == 0, text)
                curves.append([(m["step"], m["lr"], m["tokens"]) for m in self.metrics(self.folder / name)
                               if "lr" in m])
                check(len(curves[-1]) > 6 and len({lr for _, lr, _ in curves[-1]}) > 3, f"no curve: {curves[-1]}")
            check(curves[0] == curves[1] == curves[2], f"{schedule}: {curves}")

    def test_an_odd_vocabulary_is_padded_for_ranks_and_whole_in_files(self):
        for layout in (["--parallel.tensor", 2], ["--parallel.data", 2, "--parallel.zero", 3]):
            recipe = support.write_recipe(self.folder, "odd", steps=4)
            code, text = self.train(recipe, "--output", self.folder / "odd", "--data.validation", 0.05, *layout)
            check(code == 0, text)
            model = self.folder / "odd/model/model.safetensors"
            with open(model, "rb") as file:
                header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            for name in ("model.embed_tokens.weight", "lm_head.weight"):
                check(header[name]["shape"] == [259, 64], f"{name}: {header[name]}")
            # Every tensor is there, and the loss of the model that was read back is the one the ranks had.
            want = [m for m in self.metrics(self.folder / "odd") if "validation_loss" in m][-1]["validation_loss"]
            one = run([self.yoke, "train", recipe, "--model.path", self.folder / "odd/model", "--model.init", "pretrained",
                       "--output", self.folder / "again", "--train.steps", 1, "--train.learning_rate", 1e-30,
                       "--data.validation", 0.05], env=ENVIRONMENT)
            check(one.returncode == 0, one.stderr)
            got = [m for m in self.metrics(self.folder / "again") if "validation_loss" in m][-1]["validation_loss"]
            check(abs(got - want) < 1e-4, f"{layout}: {got} after {want}")
            for name in ("odd", "again"):
                subprocess.run(["rm", "-r", self.folder / name], check=True)

    # Ranks that are lost, stuck or slow.

    def disturbed(self, name, send, seconds, *options):
        """A job of two ranks; rank 1 gets a signal in mid-run. Exit code, output, seconds."""
        recipe = support.write_recipe(self.folder, name, steps=100000, parallel="data: 2, zero: 1")
        job = Job([self.yoke, "train", recipe, *options], self.log)
        job.until("step 12/")
        rank = dict(support.ranks_of(self.yoke, self.folder))[1]
        begin = time.monotonic()
        os.kill(rank, send)
        code = job.wait(seconds)
        return recipe, code, job.text, time.monotonic() - begin

    def goes_on(self, recipe):
        code, text = self.train(recipe, "--resume", "auto", "--train.steps", 20)
        newest = max(int(p.name[5:]) for p in (self.folder / recipe.stem / "checkpoints").glob("step-*"))
        check(code == 0 and "resumed from" in text or newest >= 20, text)

    def test_a_killed_rank_is_named(self):
        recipe, code, text, took = self.disturbed("killed", signal.SIGKILL, 30)
        check(code == 7 and took < 30, f"{code} after {took:.0f} s: {text}")
        for part in (f"yoke: rank 1 ({self.host}) was lost: signal 9", ", number ", " of group ", "newest whole checkpoint"):
            check(part in text, f"'{part}' is not in: {text}")
        table = run([self.yoke, "launch", "records", self.folder / "killed"])
        check(table.returncode == 0 and table.stdout.count(self.host) >= 2 and "number" in table.stdout, table)
        self.goes_on(recipe)

    def test_a_stopped_rank_is_named(self):
        recipe, code, text, took = self.disturbed("stopped", signal.SIGSTOP, 60)
        check(code == 7 and took < 30, f"{code} after {took:.0f} s: {text}")
        for part in (f"rank 1 (host {self.host}", "nothing was heard of it", ", number ", " of group ", "/ranks holds"):
            check(part in text, f"'{part}' is not in: {text}")
        check(not support.ranks_of(self.yoke, self.folder), "ranks are left")
        self.goes_on(recipe)

    def test_a_stopped_rank_ends_a_job_within_its_timeout(self):
        _, code, text, took = self.disturbed("timeout", signal.SIGSTOP, 60, "--parallel.timeout", 5)
        check(code == 7 and took < 20, f"{code} after {took:.0f} s: {text}")
        check(f"rank 1 (host {self.host}" in text and ", number " in text, text)

    def test_a_slow_rank_is_named_with_its_cost(self):
        recipe = support.write_recipe(self.folder, "slow", steps=100000, parallel="data: 2, zero: 1")
        job = Job([self.yoke, "train", recipe, "--checkpoint.every", 0, "--log.every", 20], self.log)
        job.until("step 40/")
        processes = dict(support.ranks_of(self.yoke, self.folder))
        for _ in range(3):  # 9 of about 10 seconds
            os.kill(processes[1], signal.SIGSTOP)
            time.sleep(3)
            os.kill(processes[1], signal.SIGCONT)
            time.sleep(0.5)
        job.until(f"rank 1 ({self.host}) is slow: ")
        job.process.send_signal(signal.SIGTERM)
        check(job.wait() == 6, job.text)
        check("stood still" in job.text, f"no cause: {job.text}")
        check("lost to slow ranks" in job.text, f"no total: {job.text}")
        slow = [s for m in self.metrics(self.folder / "slow") for s in m.get("slow_ranks", []) if s["rank"] == 1]
        check(slow and slow[0]["seconds_lost"] > 2 and slow[0]["host"] == self.host and "stood still" in slow[0]["cause"],
              f"{slow}")

    # Ranks that don't belong together.

    def test_wrong_numbers_of_ranks(self):
        recipe = support.write_recipe(self.folder, "number")
        self.refused(self.mpirun([2, self.yoke, "train", recipe, "--parallel.data", 3]), 2, "3 ranks", "2 were started",
                     "parallel.data to 2 or auto")
        self.refused(self.mpirun([3, self.yoke, "train", recipe, "--parallel.tensor", 2]), 2, "3 ranks were started",
                     "start 2 or 4")
        self.refused(self.mpirun([3, self.yoke, "train", recipe]), 2, "train.global_batch is 16", "15 or 18")

    def test_sizes_that_do_not_divide(self):
        recipe = support.write_recipe(self.folder, "sizes")
        for options, parts in (
                (["tensor", 3], ["num_attention_heads (4)", "num_key_value_heads (2)", "legal are 1, 2"]),
                (["tensor", 4], ["num_key_value_heads (2)", "legal are 1, 2"]),
                (["context", 3], ["data.sequence_length", "64"]),
                (["pipeline", 3], ["3 stages", "2 layers"]),
                (["pipeline", 64], ["64 stages", "2 layers"]),
                (["data", 5], ["train.global_batch is 16", "15 or 20"]),
                (["shard", 3], ["parallel.shard"])):
            ending = self.train(recipe, f"--parallel.{options[0]}", options[1], seconds=60)
            self.refused(ending, 2, "parallel" if options[0] != "data" else "train", *parts)
            plan = run([self.yoke, "plan", recipe, f"--parallel.{options[0]}", options[1]])
            check(plan.returncode == 2, f"yoke plan takes {options}: {plan.stdout}{plan.stderr}")

    def test_different_recipes(self):
        recipe = support.write_recipe(self.folder, "recipes")
        self.refused(self.mpirun([1, self.yoke, "train", recipe],
                                 [2, self.yoke, "train", recipe, "--train.steps", 7, "--train.seed", 3]),
                     2, "train.steps is 60 on rank 0", "7 on ranks 1, 2", "train.seed is")
        self.refused(self.mpirun([1, self.yoke, "train", recipe], [1, self.yoke, "train", self.folder / "none.yaml"]), 2,
                     "rank 1", "none.yaml")
        self.refused(self.mpirun([1, self.yoke, "train", recipe], [1, self.yoke, "train", recipe, "--train.steps", "no"]), 2,
                     "rank 1", "train.steps")

    def test_different_clocks(self):
        recipe = support.write_recipe(self.folder, "clocks", steps=3)
        source, shim = self.folder / "shim.c", self.folder / "shim.so"
        source.write_text(SHIM)
        made = run(["cc", "-shared", "-fPIC", "-o", shim, source, "-ldl"])
        check(made.returncode == 0, made.stderr)

        def ahead(seconds):
            other = ["env", f"LD_PRELOAD={shim}", f"CLOCK_AHEAD={seconds}", self.yoke, "train", recipe]
            return self.mpirun([3, self.yoke, "train", recipe], [1, *other])

        self.refused(ahead(4000), 2, "clock of rank 3", "4000 seconds ahead", "NTP")
        code, text = ahead(60)
        check(code == 0 and text.count("the clock of rank 3") == 1 and "60 seconds ahead" in text, text)

    def test_different_data(self):
        recipe = support.write_recipe(self.folder, "data")
        recipe.write_text(recipe.read_text().replace(f"train: {self.folder}/corpus.txt", "train: here/corpus.txt"))
        for side in "ab":
            (self.folder / side / "here").mkdir(parents=True)
            text = text_of(self.folder / "corpus.txt")
            (self.folder / side / "here/corpus.txt").write_text(text if side == "a" else text.replace("dogs", "cats"))
        words = [self.yoke, "train", recipe]
        self.refused(self.mpirun([1, "-wdir", self.folder / "a", *words], [1, "-wdir", self.folder / "b", *words]), 4,
                     "Ranks differ in the data set", "on rank 0", "on rank 1")
        (self.folder / "b/here/corpus.txt").unlink()
        self.refused(self.mpirun([1, "-wdir", self.folder / "a", *words], [1, "-wdir", self.folder / "b", *words]), 4,
                     "rank 1", "here/corpus.txt")

    def test_a_folder_that_is_not_shared(self):
        recipe = support.write_recipe(self.folder, "apart")
        recipe.write_text(recipe.read_text().replace(f"output: {self.folder}/apart", "output: out/apart"))
        for side in "cd":
            (self.folder / side).mkdir()
        words = [self.yoke, "train", recipe]
        self.refused(self.mpirun([1, "-wdir", self.folder / "c", *words], [1, "-wdir", self.folder / "d", *words]), 4,
                     "is not shared", "rank 1")


def main():
    yoke = pathlib.Path(sys.argv[1]).resolve()
    support.require(["mpirun", "cc"], root=False)
    names = sys.argv[2:] or [name[5:] for name in vars(Tests) if name.startswith("test_")]
    failures = 0
    for name in names:
        with tempfile.TemporaryDirectory(prefix="yoke-ranks-") as folder:
            begin = time.monotonic()
            try:
                getattr(Tests(yoke, pathlib.Path(folder)), f"test_{name}")()
                print(f"ok      {name} ({time.monotonic() - begin:.0f} s)", flush=True)
            except AssertionError as problem:
                failures += 1
                print(f"FAILED  {name}: {problem}", flush=True)
                for _, process in support.ranks_of(yoke, folder):
                    os.kill(process, signal.SIGKILL)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
