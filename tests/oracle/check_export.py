#!/usr/bin/env python3
"""Loads folders that yoke wrote and compares what transformers computes with what yoke did.

Each FOLDER is a Hugging Face folder plus expected.json: {"tokens": [[...], ...], "loss": x} and, if wanted,
"targets" (default: the next token, nothing for the last position; -100 is unsupervised) and "logits" [rows, length,
vocabulary]. A row is one document. The loss is the sum over supervised tokens divided by their number.

Families that the installed transformers lacks go through reference_model.py, which check_reference.py vouches for; so
do layers whose windows differ, which transformers 4 computes only with flash attention.

Usage: check_export.py FOLDER...
"""
import json
import pathlib
import sys
import warnings

import torch
import transformers

import reference_model

TOLERANCE = 1e-4


def transformers_logits(folder, tokens):
    """[B, T, V], or None with the reason where this transformers cannot be asked."""
    config = reference_model.load_config(folder)
    if not hasattr(transformers, config.architecture):
        return None, f"transformers {transformers.__version__} has no {config.architecture}"
    if len(set(config.windows)) > 1 and int(transformers.__version__.split(".")[0]) < 5:
        return None, f"transformers {transformers.__version__} has no windows on some layers only"
    model, report = getattr(transformers, config.architecture).from_pretrained(
        folder, torch_dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[kind]:
            raise ValueError(f"{kind.replace('_', ' ')}: {sorted(map(str, report[kind]))}")
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits, None


def check(folder):
    """Problems found, and how the folder was judged."""
    expected = json.loads((folder / "expected.json").read_text())
    batch = reference_model.plain_batch(expected["tokens"], expected.get("targets"))
    config = reference_model.load_config(folder)
    scores, reason = transformers_logits(folder, batch["tokens"])
    judge = f"transformers {transformers.__version__}"
    if scores is None:
        judge = f"reference_model ({reason})"
        with torch.no_grad():
            scores = reference_model.logits(reference_model.load_parameters(folder), config, batch)
    loss = float(reference_model.token_loss_sum(scores.double(), batch["targets"])) / reference_model.supervised(batch)
    problems = []
    if not abs(loss - expected["loss"]) <= TOLERANCE:
        problems.append(f"loss {loss}, yoke says {expected['loss']}")
    if "logits" in expected:
        difference = float((scores.double() - torch.tensor(expected["logits"], dtype=torch.float64)).abs().max())
        if not difference <= TOLERANCE:
            problems.append(f"a logit differs by {difference}")
    return problems, f"loss {loss:.6f}, yoke {expected['loss']:.6f}, by {judge}"


def main():
    folders = [pathlib.Path(a) for a in sys.argv[1:]]
    if not folders:
        sys.exit(__doc__)
    failed = False
    for folder in folders:
        try:
            problems, how = check(folder)
        except Exception as error:  # a folder that does not load is a failed check, and the others still count
            problems, how = [f"does not load: {error}"], ""
        failed |= bool(problems)
        print(f"{folder.name}: {'FAILED: ' + '; '.join(problems) if problems else 'ok'} {how}")
    return 1 if failed else 0


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    sys.exit(main())
