"""What the tests of whole clusters share: a tiny recipe, waiting, and skipping where a machine can't do it."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

SKIPPED = 77  # the exit code that ctest takes for it


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(SKIPPED)


def require(programs, root=True):
    """Root, unless it isn't needed, and these programs, or the test is skipped with the reason."""
    if root and os.geteuid() != 0:
        skip("needs root: daemons and network namespaces are started")
    missing = [p for p in programs if not shutil.which(p)]
    if missing:
        skip(f"no {', '.join(missing)}; scripts/install_packages.sh test installs them on Debian 12")


def check(condition, message):
    if not condition:
        raise AssertionError(message)


def wait_until(condition, seconds, what):
    """The first true value of condition()."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {seconds} s")


def write_recipe(folder, name="recipe", steps=60, parallel="zero: 1"):
    """A tiny model, a corpus, and a recipe that trains it, slowly enough to be disturbed. The recipe's path."""
    folder = pathlib.Path(folder)
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model/config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 259, "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "initializer_range": 0.1,
        "tie_word_embeddings": False, "bos_token_id": 256, "eos_token_id": 257}))
    # A linear congruential sequence of words: samples differ from rank to rank.
    words, state, text = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "ten", "dogs", "run"], 1, []
    for _ in range(20000):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        text.append(words[(state >> 33) % len(words)])
    (folder / "corpus.txt").write_text(" ".join(text))
    recipe = folder / f"{name}.yaml"
    recipe.write_text(f"""model: {{path: {folder}/model, init: random, tokenizer: bytes}}
data: {{train: {folder}/corpus.txt, sequence_length: 64}}
train: {{steps: {steps}, micro_batch: 1, global_batch: 16, precision: fp32, learning_rate: 3e-3}}
memory: {{recompute: none, loss_chunks: 1}}
parallel: {{{parallel}}}
threads: 1
checkpoint: {{every: 5, keep: 100}}
log: {{every: 1}}
output: {folder}/{name}
""")
    return recipe


def losses(folder):
    """Step to loss of a run's metrics; a step that was done twice must have come out the same."""
    found = {}
    for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "loss" in entry:
            check(found.get(entry["step"], entry["loss"]) == entry["loss"], f"step {entry['step']} has two losses")
            found[entry["step"]] = entry["loss"]
    return found


def ranks_of(yoke, folder):
    """(rank, process) of every rank whose command line names something in `folder`."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
            variables = dict(v.split("=", 1) for v in (process / "environ").read_bytes().decode().split("\0") if "=" in v)
        except (OSError, UnicodeDecodeError):
            continue
        rank = variables.get("OMPI_COMM_WORLD_RANK") or variables.get("PMIX_RANK")
        if rank and words[0] == str(yoke) and any(str(folder) in word for word in words):
            found.append((int(rank), int(process.name)))
    return sorted(found)


def text_of(path):
    path = pathlib.Path(path)
    return path.read_text(errors="replace") if path.exists() else ""


def run(words, **options):
    return subprocess.run([str(w) for w in words], text=True, capture_output=True, **options)
