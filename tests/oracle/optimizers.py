"""Optimizers for the training curves: published ones where there are any, Muon from its formulas."""
import math

import torch
import torch.optim.lr_scheduler as lr_scheduler

if not hasattr(lr_scheduler, "LRScheduler"):  # transformers' optimizers ask for the name that PyTorch 2 gave it
    lr_scheduler.LRScheduler = lr_scheduler._LRScheduler
from transformers.optimization import Adafactor


class Grouped:
    """Optimizers side by side, with one learning rate, after decoupled weight decay where an optimizer has none."""

    def __init__(self, members, decayed=(), weight_decay=0.0):
        self.members, self.decayed, self.weight_decay, self.rate = members, decayed, weight_decay, 0.0

    def set_rate(self, rate):
        self.rate = rate
        for member in self.members:
            for group in member.param_groups:
                group["lr"] = rate

    def zero_grad(self):
        for member in self.members:
            member.zero_grad()

    @torch.no_grad()
    def step(self):
        for p in self.decayed:
            p.mul_(1 - self.rate * self.weight_decay)
        for member in self.members:
            member.step()


def groups(parameters, weight_decay):
    """Matrices, embedding and head decay, norms and biases do not."""
    return [{"params": [p for p in parameters if p.ndim == 2], "weight_decay": weight_decay},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0}]


def adamw(parameters, betas, epsilon, weight_decay):
    return Grouped([torch.optim.AdamW(groups(parameters.values(), weight_decay), betas=betas, eps=epsilon)])


def sgd(parameters, betas, epsilon, weight_decay):
    matrices = [p for p in parameters.values() if p.ndim == 2]
    return Grouped([torch.optim.SGD(list(parameters.values()), lr=0.0, momentum=0.9)], matrices, weight_decay)


def adafactor(parameters, betas, epsilon, weight_decay):
    return Grouped([Adafactor(groups(parameters.values(), weight_decay), lr=0.0, scale_parameter=False,
                                           relative_step=False, warmup_init=False)])


class Muon(torch.optim.Optimizer):
    """Jordan's Muon with Nesterov momentum, in the precision of the weights, and Moonlight's size of an update."""

    def __init__(self, parameters, weight_decay, momentum=0.95):
        super().__init__(parameters, {"lr": 0.0, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.mul_(group["momentum"]).add_(p.grad)
                x = p.grad + group["momentum"] * buffer
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    gram = x @ x.T
                    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
                size = 0.2 * math.sqrt(max(p.shape))
                p.sub_(group["lr"] * (size * x + group["weight_decay"] * p))


def muon(parameters, betas, epsilon, weight_decay):
    inside = {name: p for name, p in parameters.items() if ".layers." in name and p.ndim == 2}
    rest = [p for name, p in parameters.items() if name not in inside]
    return Grouped([Muon(list(inside.values()), weight_decay),
                    torch.optim.AdamW(groups(rest, weight_decay), betas=betas, eps=epsilon)])


# Name: (how it is made, highest learning rate); and the models that are trained with them: between them they have tied
# and untied heads, biases and QK-norm.
VARIANTS = ("llama-untied", "qwen2-tied", "qwen3")
OTHERS = {"sgd": (sgd, 0.05), "adafactor": (adafactor, 1e-3), "muon": (muon, 1e-3)}
