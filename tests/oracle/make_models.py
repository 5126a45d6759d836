#!/usr/bin/env python3
"""Writes tiny models of every family and what PyTorch says about them. Format: README.md beside this file.

Usage: make_models.py OUT
"""
import hashlib
import json
import pathlib
import shutil
import sys
import warnings

import torch
import transformers
from safetensors.torch import save_file

import optimizers
import reference_model
import variants

ROWS, LENGTH = 3, 24
STEPS, MICRO_BATCHES, CYCLE = 50, 2, 8
PEAK_RATE, WARM_UP = 1e-3, 5
BETAS, EPSILON, WEIGHT_DECAY, CLIP_NORM = (0.9, 0.95), 1e-8, 0.1, 1.0
PROMPT, CONTINUATION = 9, 20


def trainable(folder, dtype=torch.float64):
    parameters = reference_model.load_parameters(folder, dtype)
    for p in parameters.values():
        p.requires_grad_()
    return parameters


def write_gradients(folder, config):
    """batch.safetensors and expected_fp32.safetensors."""
    parameters = trainable(folder)
    batch = variants.packed_batch(config.vocabulary, ROWS, LENGTH, seed=1)
    scores = reference_model.logits(parameters, config, batch)
    loss = reference_model.token_loss_sum(scores, batch["targets"]) / reference_model.supervised(batch)
    loss.backward()
    expected = {name: p.grad for name, p in parameters.items()}
    expected.update(loss=loss.detach()[None], logits=scores.detach())
    save_file(batch, folder / "batch.safetensors")
    save_file({n: t.float().contiguous() for n, t in expected.items()}, folder / "expected_fp32.safetensors")


def train(folder, config, batches, dtype, make_optimizer=optimizers.adamw, peak_rate=PEAK_RATE):
    """Losses and gradient norms of STEPS steps, by PyTorch's clipping and, but for Muon, published optimizers."""
    parameters = trainable(folder, dtype)
    optimizer = make_optimizer(parameters, BETAS, EPSILON, WEIGHT_DECAY)
    losses, norms, rates = [], [], []
    for step in range(STEPS):
        rate = peak_rate * min(1.0, (step + 1) / WARM_UP)
        optimizer.set_rate(rate)
        used = [batches[(step * MICRO_BATCHES + i) % CYCLE] for i in range(MICRO_BATCHES)]
        count = sum(reference_model.supervised(b) for b in used)
        optimizer.zero_grad()
        total = 0.0
        for batch in used:
            part = reference_model.token_loss_sum(reference_model.logits(parameters, config, batch), batch["targets"]) / count
            part.backward()
            total += float(part)
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(parameters.values()), CLIP_NORM)))
        losses.append(total)
        rates.append(rate)
        optimizer.step()
    return losses, norms, rates


def write_training(folder, config):
    """train_batches.safetensors and losses_50.json. Returns how far float32 strays from float64."""
    # Micro-batches of very unequal numbers of supervised tokens: weighting them equally would show.
    batches = [variants.packed_batch(config.vocabulary, ROWS, LENGTH, seed=100 + i, supervised_share=(0.9, 0.1)[i % 2])
               for i in range(CYCLE)]
    save_file({f"{i}.{name}": value for i, b in enumerate(batches) for name, value in b.items()},
              folder / "train_batches.safetensors")
    losses, norms, rates = train(folder, config, batches, torch.float64)
    losses_fp32, _, _ = train(folder, config, batches, torch.float32)
    strayed = max(abs(a - b) for a, b in zip(losses, losses_fp32))
    (folder / "losses_50.json").write_text(json.dumps({
        "steps": STEPS, "micro_batches": MICRO_BATCHES, "cycle": CYCLE, "betas": BETAS, "epsilon": EPSILON,
        "weight_decay": WEIGHT_DECAY, "clip_norm": CLIP_NORM, "learning_rates": rates, "losses": losses,
        "gradient_norms": norms, "pytorch_fp32_largest_difference": strayed}, indent=1) + "\n")
    for name, (make_optimizer, peak_rate) in optimizers.OTHERS.items() if folder.name in optimizers.VARIANTS else ():
        losses, norms, rates = train(folder, config, batches, torch.float64, make_optimizer, peak_rate)
        losses_fp32, _, _ = train(folder, config, batches, torch.float32, make_optimizer, peak_rate)
        (folder / f"losses_50_{name}.json").write_text(json.dumps({
            "weight_decay": WEIGHT_DECAY, "clip_norm": CLIP_NORM, "learning_rates": rates, "losses": losses,
            "gradient_norms": norms,
            "pytorch_fp32_largest_difference": max(abs(a - b) for a, b in zip(losses, losses_fp32))}, indent=1) + "\n")
    return strayed


def write_greedy(folder, config):
    """greedy.json: the likeliest continuation of a prompt, every step computed from scratch."""
    parameters = reference_model.load_parameters(folder)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(config.vocabulary, (1, PROMPT), generator=generator)
    margin = float("inf")
    for _ in range(CONTINUATION):
        top = reference_model.logits(parameters, config, reference_model.plain_batch(tokens))[0, -1].topk(2)
        margin = min(margin, float(top.values[0] - top.values[1]))
        tokens = torch.cat([tokens, top.indices[:1][None]], dim=1)
    listed = tokens[0].tolist()
    (folder / "greedy.json").write_text(json.dumps(
        {"prompt": listed[:PROMPT], "continuation": listed[PROMPT:], "smallest_margin": margin}) + "\n")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    here = pathlib.Path(__file__).resolve().parent
    sources = ("make_models.py", "optimizers.py", "variants.py", "reference_model.py", "requirements.txt")
    stamp = hashlib.sha256(b"".join((here / s).read_bytes() for s in sources)).hexdigest()
    stamp_file = out / "stamp"
    if stamp_file.exists() and stamp_file.read_text() == stamp:
        print(f"{out} is up to date")
        return
    for variant in variants.VARIANTS:
        folder = out / variant.name
        shutil.rmtree(folder, ignore_errors=True)
        variants.write_folder(variant, folder)
        config = reference_model.load_config(folder)
        write_gradients(folder, config)
        strayed = write_training(folder, config)
        write_greedy(folder, config)
        print(f"{variant.name}: float32 strays {strayed:.1e} from float64 in {STEPS} steps")
    stamp_file.write_text(stamp)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    main()
