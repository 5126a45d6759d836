#!/usr/bin/env python3
"""The oracle's own test: reference_model.py against transformers' models, logits and gradients.

Packed documents are compared with what transformers gives for each document alone, so no mask of ours is involved.
A family that the installed transformers lacks is named as skipped.
"""
import pathlib
import sys
import tempfile
import warnings

import torch
import transformers

import reference_model
import variants

# transformers computes norms and rotary angles in float32 whatever the model's type; the rest runs in float64.
TOLERANCE = 5e-6


def documents(batch):
    """(row, begin, end) of every document."""
    rows, length = batch["tokens"].shape
    for row in range(rows):
        begins = sorted(set(batch["key_begin"][row].tolist()))
        for begin, end in zip(begins, begins[1:] + [length]):
            yield row, begin, end


def theirs(folder, batch):
    """(logits, {name: gradient}) by transformers, one document at a time."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float64,
                                                              attn_implementation="eager").double()
    rows, length = batch["tokens"].shape
    pieces = [[None] * length for _ in range(rows)]
    total = 0
    for row, begin, end in documents(batch):
        scores = model(input_ids=batch["tokens"][row:row + 1, begin:end].long(), use_cache=False).logits[0]
        total = total + torch.nn.functional.cross_entropy(scores, batch["targets"][row, begin:end].long(),
                                                          reduction="sum", ignore_index=reference_model.IGNORE)
        for i in range(begin, end):
            pieces[row][i] = scores[i - begin].detach()
    (total / reference_model.supervised(batch)).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return torch.stack([torch.stack(row) for row in pieces]), gradients


def ours(folder, config, batch):
    parameters = reference_model.load_parameters(folder)
    for p in parameters.values():
        p.requires_grad_()
    scores = reference_model.logits(parameters, config, batch)
    (reference_model.token_loss_sum(scores, batch["targets"]) / reference_model.supervised(batch)).backward()
    return scores.detach(), {name: p.grad for name, p in parameters.items()}


def relative(a, b):
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def known_gap(variant):
    """Why this transformers cannot be the judge of a variant, or None."""
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if not hasattr(transformers, variant.family + "ForCausalLM"):
        return "no such family"
    if variant.name == "qwen2-window" and version < (5, 0):
        return "its eager attention applies the window to every layer"
    return None


def main():
    failed = False
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory() as temporary:
        for variant in variants.VARIANTS:
            gap = known_gap(variant)
            if gap:
                print(f"{variant.name}: skipped, transformers {transformers.__version__}: {gap}")
                continue
            folder = pathlib.Path(temporary) / variant.name
            variants.write_folder(variant, folder)
            config = reference_model.load_config(folder)
            batch = variants.packed_batch(config.vocabulary, 3, 24, seed=1)
            their_logits, their_gradients = theirs(folder, batch)
            our_logits, our_gradients = ours(folder, config, batch)
            errors = {"logits": relative(our_logits, their_logits)}
            if set(our_gradients) != set(their_gradients):
                print(f"{variant.name}: other parameters: {set(our_gradients) ^ set(their_gradients)}")
                failed = True
                continue
            errors.update({name: relative(g, their_gradients[name]) for name, g in our_gradients.items()})
            worst = max(errors, key=errors.get)
            good = errors[worst] <= TOLERANCE
            failed |= not good
            print(f"{variant.name}: {'ok' if good else 'FAILED'}, largest relative error {errors[worst]:.1e} ({worst})")
    return 1 if failed else 0


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    sys.exit(main())
