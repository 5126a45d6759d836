#!/usr/bin/env python3
"""A whole Slurm on this machine: a job of four ranks by the script of `yoke launch slurm` loses a rank to SIGKILL, is
queued again, goes on from its last checkpoint and ends as a run that nothing happened to, loss for loss. Then a job whose
time is up saves its state, is queued again and ends the same way.

Usage: slurm_test.py YOKE
"""
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

import support
from support import check, run, text_of, wait_until

RANKS = 4


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Slurm:
    """munged, slurmctld and slurmd with files and ports of their own."""

    def __init__(self, folder):
        self.folder = folder
        self.daemons = []
        host = socket.gethostname().split(".")[0]
        for name in ("munge", "state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge/key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        controller, daemon = free_ports(2)
        self.config = folder / "slurm.conf"
        self.config.write_text(f"""ClusterName=yoke
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=5
SchedulerParameters=batch_sched_delay=1,sched_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={RANKS} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
        self.environment = {**os.environ, "SLURM_CONF": str(self.config)}
        for name in list(self.environment):
            if name.startswith(("SLURM_", "OMPI_", "PMIX_")) and name != "SLURM_CONF":
                del self.environment[name]
        self.start("munged", "--force", "--foreground", f"--key-file={key}", f"--socket={folder}/munge/socket",
                   f"--pid-file={folder}/munge/pid", f"--log-file={folder}/munge/log", f"--seed-file={folder}/munge/seed")
        wait_until((folder / "munge/socket").exists, 20, "munged's socket")
        self.start("slurmctld", "-D", "-f", self.config)
        self.start("slurmd", "-D", "-f", self.config)
        wait_until(lambda: "idle" in self.ask("sinfo", "-h", "-o", "%T").stdout, 60, "an idle node")

    def start(self, *words):
        with open(self.folder / f"{words[0]}.out", "w") as out:
            self.daemons.append(subprocess.Popen([str(w) for w in words], stdout=out, stderr=out, env=self.environment
                                                 if words[0] != "munged" else None))

    def ask(self, *words):
        return run(words, env=self.environment, timeout=60)

    def job(self, number):
        text = self.ask("scontrol", "-o", "show", "job", number).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def stop(self):
        # Steps that outlive their daemons would stay for good.
        self.ask("scancel", "-u", "root")
        try:
            wait_until(lambda: not self.ask("squeue", "-h").stdout.strip(), 60, "an empty queue")
        except (AssertionError, subprocess.TimeoutExpired) as problem:
            print(f"slurm: {problem}")
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def submit(slurm, yoke, recipe, *options):
    script = recipe.with_suffix(".sh")
    made = run([yoke, "launch", "slurm", recipe, "--to", script, "--ranks-per-node", RANKS, "--folder",
                recipe.parent,
                *options])
    check(made.returncode == 0, made.stderr)
    sent = slurm.ask("sbatch", "--parsable", script)
    check(sent.returncode == 0, sent.stderr + text_of(script))
    number = sent.stdout.strip()
    return number, recipe.parent / f"{recipe.stem}-{number}.log"


def wait_for_end(slurm, number, seconds):
    ended = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
    wait_until(lambda: slurm.job(number).get("JobState") in ended, seconds, "the job's end")
    return slurm.job(number)


def lost_rank(slurm, yoke, folder, want):
    number, log = submit(slurm, yoke, support.write_recipe(folder, "lost"))
    wait_until(lambda: "step 12/" in text_of(log), 120, "step 12")
    ranks = dict(support.ranks_of(yoke, folder))
    check(sorted(ranks) == list(range(RANKS)), f"ranks {ranks}")
    os.kill(ranks[2], signal.SIGKILL)
    job = wait_for_end(slurm, number, 240)
    text = text_of(log)
    check(job["JobState"] == "COMPLETED" and job["Restarts"] == "1", f"{job}")
    check("queued again" in text and "resumed from" in text, "not resumed")
    check(support.losses(folder / "lost") == want, "losses differ from the undisturbed run's")
    check((folder / "lost/model/model.safetensors").exists(), "no model")


def time_is_up(slurm, yoke, folder, want):
    # Slurm looks at limits twice a minute and signals up to a minute early: the state is saved somewhere on the way.
    recipe = support.write_recipe(folder, "long", steps=100000)
    number, log = submit(slurm, yoke, recipe, "--time", "1:30", "--grace", "45", "--restarts", "1")
    wait_until(lambda: "queued again" in text_of(log), 240, "the first end")
    check("interrupted after step" in text_of(log), "state was not saved")
    wait_until(lambda: "resumed from" in text_of(log), 120, "the second start")
    slurm.ask("scancel", number)
    saved = support.losses(folder / "long")
    check(all(saved[step] > 0 for step in want if step in saved), "no losses")


def main():
    yoke = pathlib.Path(sys.argv[1]).resolve()
    support.require(["munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "mpirun"])
    with tempfile.TemporaryDirectory(prefix="yoke-slurm-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        alone = run([yoke, "train", support.write_recipe(folder, "alone"), "--parallel.data", RANKS], timeout=300)
        check(alone.returncode == 0, alone.stderr)
        want = support.losses(folder / "alone")
        slurm = Slurm(folder)
        try:
            listed = slurm.ask("srun", "--mpi=list")
            check("pmix" in listed.stdout + listed.stderr, "this Slurm has no pmix")
            lost_rank(slurm, yoke, folder, want)
            time_is_up(slurm, yoke, folder, want)
        except BaseException:
            for log in sorted(folder.glob("*.log")) + sorted(folder.glob("*.out")):
                print(f"==> {log.name}\n{text_of(log)[-4000:]}")
            raise
        finally:
            slurm.stop()
    print("a job of four ranks lost one, was queued again and ended as an undisturbed run; one saved when its time was up")


if __name__ == "__main__":
    main()
