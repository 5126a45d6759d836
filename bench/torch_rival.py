#!/usr/bin/env python3
"""What PyTorch makes of the same training step: a plain, careful LLaMA, AdamW, clipping; one JSON line.

Written so that PyTorch is not held back: fused query/key/value and gate/up products, its own attention kernel where it
has one, the fused or for-each optimizer, no synchronisation within a step. Runs on PyTorch 1.13 and on 2.x.

With --ranks N it is one of N processes under DistributedDataParallel over gloo, each bound to its part of the cores;
gradients are summed in the last micro-batch's backward alone. With --turns it makes a step for each byte from a pipe.
"""
import argparse
import contextlib
import json
import math
import os
import resource
import statistics
import time

import torch
import torch.distributed
import torch.nn.functional as F
from torch import nn

ATTENTION = getattr(F, "scaled_dot_product_attention", None)  # PyTorch 2


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight.to(x.dtype)


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads, self.head_dim = a.heads, a.hidden // a.heads
        self.input_norm, self.post_norm = Norm(a.hidden), Norm(a.hidden)
        self.qkv = nn.Linear(a.hidden, 3 * a.hidden, bias=False)
        self.output = nn.Linear(a.hidden, a.hidden, bias=False)
        self.gate_up = nn.Linear(a.hidden, 2 * a.mlp, bias=False)
        self.down = nn.Linear(a.mlp, a.hidden, bias=False)

    def attention(self, x, cos, sin, mask):
        rows, length, hidden = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)

        def rotate(t):
            first, second = t.chunk(2, dim=-1)
            return t * cos + torch.cat([-second, first], dim=-1) * sin

        q, k = rotate(q), rotate(k)
        if ATTENTION is not None:
            y = ATTENTION(q, k, v, is_causal=True)
        else:
            flat = (rows * self.heads, length, self.head_dim)
            q, k, v = q.reshape(flat), k.reshape(flat), v.reshape(flat)
            scores = torch.baddbmm(mask.to(q.dtype), q, k.transpose(1, 2), alpha=1 / math.sqrt(self.head_dim))
            y = torch.bmm(scores.softmax(-1).to(v.dtype), v).view(rows, self.heads, length, self.head_dim)
        return self.output(y.transpose(1, 2).reshape(rows, length, hidden))

    def forward(self, x, cos, sin, mask):
        x = x + self.attention(self.input_norm(x), cos, sin, mask)
        gate, up = self.gate_up(self.post_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embedding = nn.Embedding(a.vocabulary, a.hidden)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.norm = Norm(a.hidden)
        self.head = nn.Linear(a.hidden, a.vocabulary, bias=False)
        d = a.hidden // a.heads
        angle = torch.arange(a.sequence)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
        angle = torch.cat([angle, angle], dim=-1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        mask = torch.full((a.sequence, a.sequence), -math.inf).triu(1)
        self.register_buffer("mask", mask, persistent=False)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin, self.mask)
        scores = self.head(self.norm(x))
        return F.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())


def make_optimizer(model):
    groups = [{"params": [p for p in model.parameters() if p.ndim == 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0}]
    for fast in ({"fused": True}, {"foreach": True}):
        try:
            return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), **fast), next(iter(fast))
        except (TypeError, RuntimeError, ValueError):
            continue
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95)), "plain"


def join_ranks(a):
    """Before the first tensor: OpenMP's threads are made where this process is bound."""
    if a.ranks == 1:
        return
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // a.ranks
    if share:
        os.sched_setaffinity(0, cores[a.rank * share:(a.rank + 1) * share])
    torch.distributed.init_process_group("gloo", init_method=f"file://{a.meeting}", rank=a.rank, world_size=a.ranks)


class Trainer:
    def __init__(self, a):
        self.a = a
        if a.threads:
            torch.set_num_threads(a.threads)
        torch.manual_seed(1)
        model = Llama(a)
        if a.precision == "bf16-weights":
            model = model.bfloat16()
        self.optimizer, self.optimizer_kind = make_optimizer(model)
        self.parameters = list(model.parameters())
        self.model = torch.compile(model) if a.compile else model
        if a.ranks > 1:
            self.model = nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        torch.manual_seed(2 + a.rank)
        self.tokens = torch.randint(a.vocabulary, (a.micro_batches, a.batch, a.sequence + 1))

    def step(self):
        """Seconds and loss of a whole optimizer step."""
        a = self.a
        begin = time.perf_counter()
        for m, tokens in enumerate(self.tokens):
            last = m + 1 == a.micro_batches
            with self.model.no_sync() if a.ranks > 1 and not last else contextlib.nullcontext():
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.precision == "bf16"):
                    loss = self.model(tokens[:, :-1], tokens[:, 1:])
                (loss / a.micro_batches).backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        # DDP's gradients are views of its buckets.
        self.optimizer.zero_grad(set_to_none=a.ranks == 1)
        return time.perf_counter() - begin, float(loss)

    def tokens_of_step(self):
        return self.tokens[:, :, 1:].numel() * self.a.ranks


def take_turns(trainer):
    a = trainer.a
    with open(f"{a.turns}.{a.rank}", "rb", buffering=0) as turns:
        while turns.read(1):
            seconds, loss = trainer.step()
            if a.rank == 0:
                print(json.dumps({"name": "tokens_per_second", "value": trainer.tokens_of_step() / seconds,
                                  "unit": "tokens/s"}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("hidden", 768), ("layers", 12), ("heads", 12), ("mlp", 2048), ("vocabulary", 32000),
                          ("sequence", 512), ("batch", 2), ("micro-batches", 1), ("warmup", 2), ("steps", 5),
                          ("threads", 0), ("ranks", 1), ("rank", 0)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--precision", choices=["fp32", "bf16", "bf16-weights"], default="bf16",
                        help="bf16: fp32 weights under autocast; bf16-weights: everything in bf16")
    parser.add_argument("--compile", action="store_true", help="torch.compile (PyTorch 2)")
    parser.add_argument("--meeting", help="a new file through which ranks find each other")
    parser.add_argument("--turns", help="named pipes PATH.0, PATH.1, ..., one a rank")
    a = parser.parse_args()
    join_ranks(a)
    trainer = Trainer(a)
    if a.turns:
        return take_turns(trainer)
    seconds = []
    for step in range(a.warmup + a.steps):
        taken, loss = trainer.step()
        if step >= a.warmup:
            seconds.append(taken)
    median = statistics.median(seconds)
    if a.rank > 0:
        return
    print(json.dumps({
        "tokens_per_second": trainer.tokens_of_step() / median,
        "step_seconds": median,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "parameters": sum(p.numel() for p in trainer.parameters),
        "loss": loss,
        "torch": torch.__version__,
        "mode": "compile" if a.compile else "eager",
        "precision": a.precision,
        "optimizer": trainer.optimizer_kind,
        "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()
