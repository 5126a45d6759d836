#!/usr/bin/env python3
"""Two network namespaces as two hosts, joined by one cable: a job over both gives the losses of a job on one. Then the
cable is cut in mid-run: the job ends within half a minute with exit code 7 and names the host, on both sides; it goes on
from its checkpoint when the cable is back. At last what must not start: a folder that the hosts don't share, a host that
can't be reached, ranks with different recipes and wrong numbers of ranks.

Usage: two_hosts_test.py YOKE
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import support
from support import check, run, text_of, wait_until

SECONDS = 30  # in which a job ends that lost a host


class Hosts:
    """Namespaces of network, host name and mounts; mpirun enters them by a stand-in for ssh."""

    def __init__(self, folder):
        self.folder = folder
        self.names = [f"yoke-{os.getpid()}-{side}" for side in "ab"]
        self.cables = [f"yk{os.getpid()}{side}"[:15] for side in "ab"]
        self.addresses = ["10.231.77.1", "10.231.77.2"]

    def __enter__(self):
        def ip(*words):
            done = run(["ip", *words])
            if done.returncode != 0:
                self.__exit__()
                support.skip(f"ip {' '.join(words)}: {done.stderr.strip()}")

        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", self.cables[0], "netns", self.names[0], "type", "veth", "peer", "name", self.cables[1], "netns",
           self.names[1])
        for name, cable, address in zip(self.names, self.cables, self.addresses):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
            ip("-n", name, "link", "set", "lo", "up")
        known = "".join(f"{a} {n}\n" for a, n in zip(self.addresses, self.names))
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + known)
        (self.folder / "own").mkdir()
        self.agent = self.folder / "agent"
        # With a file `unshared` there, the second host sees a folder of its own in place of the run's; with a file
        # `narrow` its ranks may use one core only.
        self.agent.write_text(f"""#!/bin/bash
host=$1; shift
ip netns list | grep -q "^$host" || {{ echo "agent: no route to host $host" >&2; exit 255; }}
exec ip netns exec "$host" unshare --uts --mount bash -c '
  hostname "$0"
  mount --bind {self.folder}/hosts /etc/hosts
  if [ "$0" = {self.names[1]} ] && [ -e {self.folder}/unshared ]; then mount --bind {self.folder}/own {self.folder}/runs; fi
  if [ "$0" = {self.names[1]} ] && [ -e {self.folder}/narrow ]; then exec taskset -c 0 bash -c "$*"; fi
  exec bash -c "$*"' "$host" "$*"
""")
        self.agent.chmod(0o755)
        return self

    def __exit__(self, *_):
        for name in self.names:
            run(["ip", "netns", "del", name])

    def set_cable(self, state):
        check(run(["ip", "-n", self.names[1], "link", "set", self.cables[1], state]).returncode == 0, "ip link")

    def start(self, words, log):
        """A command on the first host."""
        line = " ".join(f"'{w}'" for w in [f"OMPI_MCA_plm_rsh_agent={self.agent}", *words])
        return subprocess.Popen([str(self.agent), self.names[0], "env", line], stdout=log, stderr=log,
                                stdin=subprocess.DEVNULL)


def finish(process, seconds):
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise AssertionError(f"not ended within {seconds} s") from None


class Test:
    def __init__(self, yoke, folder, hosts):
        self.yoke, self.folder, self.hosts = yoke, folder, hosts
        self.slots = ",".join(f"{name}:2" for name in hosts.names)

    def train(self, recipe, *options, hosts=None, seconds=240):
        """Exit code and what was said."""
        log = self.folder / "log"
        with open(log, "w") as out:
            code = finish(self.hosts.start([self.yoke, "train", recipe, "--hosts", hosts or self.slots, *options], out),
                          seconds)
        return code, text_of(log)

    def recipe(self, name, **changes):
        recipe = support.write_recipe(self.folder, name, **changes)
        text = recipe.read_text().replace(f"output: {self.folder}/{name}", f"output: {self.folder}/runs/{name}")
        recipe.write_text(text)
        return recipe

    def cut_off(self, want):
        recipe = self.recipe("cut", steps=40)
        log = self.folder / "cut.log"
        with open(log, "w") as out:
            job = self.hosts.start([self.yoke, "train", recipe, "--hosts", self.slots, "--train.steps", 100000], out)
            try:
                wait_until(lambda: "step 12/" in text_of(log), 120, "step 12")
                self.hosts.set_cable("down")
                begin = time.monotonic()
                code = finish(job, SECONDS + 15)
                took = time.monotonic() - begin
            finally:
                self.hosts.set_cable("up")
        text = text_of(log)
        check(code == 7, f"exit code {code}: {text}")
        check(took < SECONDS, f"ended after {took:.0f} s: {text}")
        check(self.hosts.names[1] in text.split("step 12/")[1], f"the host is not named: {text}")
        wait_until(lambda: not support.ranks_of(self.yoke, self.folder), SECONDS, "the end of the other side's ranks")
        print(f"cut off: ended after {took:.0f} s: {text.splitlines()[-1]}")
        # A constant rate, so that the length of a run doesn't change its steps.
        code, text = self.train(recipe, "--resume", "auto")
        check(code == 0 and "resumed from" in text, text)
        return want

    def refuse(self, code, parts, recipe, *options, hosts=None):
        found, text = self.train(recipe, *options, hosts=hosts, seconds=90)
        check(found == code, f"exit code {found}, not {code}: {text}")
        for part in parts:
            check(part in text, f"'{part}' is not in: {text}")
        said = [line for line in text.splitlines() if line.startswith("yoke: ")]
        check(len(said) == 1, f"not said once: {text}")

    def different_processors(self):
        """Named, and allowed where the run fits."""
        a, b = self.hosts.names
        recipe = self.recipe("narrow", steps=3)
        recipe.write_text(recipe.read_text().replace("threads: 1\n", ""))
        (self.folder / "narrow").write_text("")
        code, text = self.train(recipe, hosts=f"{a}:1,{b}:1")
        (self.folder / "narrow").unlink()
        check(code == 0, text)
        cores = len(os.sched_getaffinity(0))
        if cores == 1:
            return print("one core: hosts don't differ")
        told = [line for line in text.splitlines() if "ranks compute on different devices" in line]
        check(len(told) == 1 and f"{cores} threads) on rank 0 ({a})" in told[0] and f"1 thread) on rank 1 ({b})" in told[0],
              text)

    def bad_input(self):
        a, b = self.hosts.names
        recipe = self.recipe("bad")
        self.refuse(2, ["6 ranks", "but 4 were started"], recipe, "--parallel.data", 6)
        self.refuse(2, ["no-such-host"], recipe, hosts=f"{a}:2,no-such-host:2")
        # Its commands are started there, but can't call back: as behind a firewall.
        self.hosts.set_cable("down")
        try:
            self.refuse(2, ["can't reach", a, b], recipe)
        finally:
            self.hosts.set_cable("up")
        wait_until(lambda: not support.ranks_of(self.yoke, self.folder), SECONDS, "no ranks")
        (self.folder / "unshared").write_text("")
        self.refuse(4, ["is not shared", f"ranks 2, 3 ({b})", f"rank 0 ({a})"], recipe)
        (self.folder / "unshared").unlink()
        # Plain mpirun, whose ranks are told different things.
        other = self.recipe("bad2")
        log = self.folder / "mpirun.log"
        with open(log, "w") as out:
            started = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--host", self.slots]
            one = ["-n", 2, self.yoke, "train"]
            job = self.hosts.start([*started, *one, recipe, ":", *one, recipe, "--train.learning_rate", "0.5"], out)
            code = finish(job, 90)
        text = text_of(log)
        check(code == 2 and text.count("yoke: ") == 1, f"{code}: {text}")
        check(f"train.learning_rate is 0.003 on ranks 0, 1 ({a}); 0.5 on ranks 2, 3 ({b})" in text, text)
        check(other.exists(), "")


def main():
    yoke = pathlib.Path(sys.argv[1]).resolve()
    support.require(["ip", "unshare", "mpirun"])
    with tempfile.TemporaryDirectory(prefix="yoke-hosts-") as name:
        folder = pathlib.Path(name)
        (folder / "runs").mkdir()
        with Hosts(folder) as hosts:
            test = Test(yoke, folder, hosts)
            alone = run([yoke, "train", test.recipe("alone", steps=40), "--parallel.data", 4], timeout=240)
            check(alone.returncode == 0, alone.stderr)
            code, text = test.train(test.recipe("both", steps=40))
            check(code == 0, text)
            want = support.losses(folder / "runs/alone")
            check(support.losses(folder / "runs/both") == want, "losses over two hosts differ from one host's")
            test.cut_off(want)
            test.different_processors()
            test.bad_input()
    print("two hosts train as one; a host that was cut off is named, with exit code 7")


if __name__ == "__main__":
    main()
