"""A compact PyTorch model of the LLaMA family, written from the published formulas: the oracle for whole models.

Follows Hugging Face's names and config fields, computes in the type of its parameters (float64 for the oracles), and
is itself checked against transformers by check_reference.py. Shapes: B rows, T tokens, V vocabulary, H hidden,
n query heads, k key/value heads, d head size.
"""
import json
import math
import pathlib

import torch
from safetensors.torch import load_file

IGNORE = -100


class Config:
    """The fields of a Hugging Face config.json that decide the mathematics."""

    def __init__(self, fields):
        get = fields.get
        self.architecture = fields["architectures"][0]
        self.vocabulary = fields["vocab_size"]
        self.hidden = fields["hidden_size"]
        self.layers = fields["num_hidden_layers"]
        self.heads = fields["num_attention_heads"]
        self.kv_heads = get("num_key_value_heads") or self.heads
        default_head_dim = 128 if self.architecture == "Qwen3ForCausalLM" else self.hidden // self.heads
        self.head_dim = get("head_dim") or default_head_dim
        self.mlp = fields["intermediate_size"]
        self.epsilon = get("rms_norm_eps", 1e-6)
        rope = get("rope_parameters") or get("rope_scaling") or {}
        self.rope_theta = rope.get("rope_theta") or get("rope_theta", 10000.0)
        self.rope = rope
        self.rope_type = rope.get("rope_type") or rope.get("type") or "default"
        self.tied = get("tie_word_embeddings", False)
        self.qkv_bias = self.architecture == "Qwen2ForCausalLM"
        self.qk_norm = self.architecture == "Qwen3ForCausalLM"
        window = get("sliding_window")
        if self.architecture == "MistralForCausalLM":
            self.windows = [window] * self.layers
        elif self.architecture in ("Qwen2ForCausalLM", "Qwen3ForCausalLM") and get("use_sliding_window"):
            first = get("max_window_layers", 28)
            self.windows = [window if layer >= first else None for layer in range(self.layers)]
        else:
            self.windows = [None] * self.layers


def inverse_frequencies(config):
    """[d/2] float64: radians a position."""
    d = config.head_dim
    frequency = config.rope_theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    if config.rope_type == "default":
        return frequency
    factor = config.rope["factor"]
    if config.rope_type == "linear":
        return frequency / factor
    if config.rope_type != "llama3":
        raise ValueError(f"rope scaling '{config.rope_type}'")
    low, high = config.rope["low_freq_factor"], config.rope["high_freq_factor"]
    turns = config.rope["original_max_position_embeddings"] * frequency / (2 * math.pi)  # over the trained length
    keep = ((turns - low) / (high - low)).clamp(0, 1)  # 0: slow, scaled; 1: fast, kept; between: mixed
    return frequency * (keep + (1 - keep) / factor)


def rms_norm(x, weight, epsilon):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def rotate(x, cos, sin):
    """x [B, heads, T, d]; cos, sin [B, 1, T, d/2]: turns the pairs (i, i + d/2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def visible(key_begin, window):
    """[B, 1, T, T] bool: a token sees its document up to itself, with a window only the last `window` tokens."""
    length = key_begin.shape[1]
    key = torch.arange(length)[None, None, :]
    query = torch.arange(length)[None, :, None]
    seen = (key <= query) & (key >= key_begin[:, :, None])
    if window:
        seen &= key > query - window
    return seen[:, None]


def logits(parameters, config, batch):
    """[B, T, V]. `batch` holds tokens, positions, key_begin, each [B, T]."""
    rows, length = batch["tokens"].shape
    p = parameters
    x = p["model.embed_tokens.weight"][batch["tokens"].long()]
    angle = batch["positions"].double()[:, None, :, None] * inverse_frequencies(config)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    def heads_of(t, count):
        return t.view(rows, length, count, config.head_dim).transpose(1, 2)

    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."

        def project(name, source):
            y = source @ p[attention + name + ".weight"].T
            bias = p.get(attention + name + ".bias")
            return y if bias is None else y + bias

        y = rms_norm(x, p[prefix + "input_layernorm.weight"], config.epsilon)
        q = heads_of(project("q_proj", y), config.heads)
        k = heads_of(project("k_proj", y), config.kv_heads)
        v = heads_of(project("v_proj", y), config.kv_heads)
        if config.qk_norm:
            q = rms_norm(q, p[attention + "q_norm.weight"], config.epsilon)
            k = rms_norm(k, p[attention + "k_norm.weight"], config.epsilon)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = config.heads // config.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        score = q @ k.transpose(2, 3) / math.sqrt(config.head_dim)
        score = score.masked_fill(~visible(batch["key_begin"], config.windows[layer]), -math.inf)
        y = (score.softmax(-1) @ v).transpose(1, 2).reshape(rows, length, config.heads * config.head_dim)
        x = x + project("o_proj", y)

        y = rms_norm(x, p[prefix + "post_attention_layernorm.weight"], config.epsilon)
        gate = y @ p[prefix + "mlp.gate_proj.weight"].T
        up = y @ p[prefix + "mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ p[prefix + "mlp.down_proj.weight"].T

    x = rms_norm(x, p["model.norm.weight"], config.epsilon)
    return x @ p["model.embed_tokens.weight" if config.tied else "lm_head.weight"].T


def token_loss_sum(scores, targets):
    """Sum of -log p(target) over supervised tokens."""
    flat = targets.long().flatten()
    keep = flat != IGNORE
    log_p = scores.flatten(0, 1)[keep].log_softmax(-1)
    return -log_p.gather(1, flat[keep][:, None]).sum()


def supervised(batch):
    return int((batch["targets"] != IGNORE).sum())


def loss(parameters, config, batch):
    """Sum of token losses / number of supervised tokens."""
    return token_loss_sum(logits(parameters, config, batch), batch["targets"]) / supervised(batch)


def load_config(folder):
    return Config(json.loads((pathlib.Path(folder) / "config.json").read_text()))


def load_parameters(folder, dtype=torch.float64):
    """{Hugging Face name: tensor}, from one or several safetensors files."""
    parameters = {}
    for path in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        parameters.update(load_file(path))
    config = load_config(folder)
    if config.tied:
        parameters.pop("lm_head.weight", None)
    return {name: tensor.to(dtype) for name, tensor in parameters.items()}


def plain_batch(tokens, targets=None):
    """One document a row. targets default to the next token, the last position unsupervised."""
    tokens = torch.as_tensor(tokens)
    if targets is None:
        targets = torch.cat([tokens[:, 1:], torch.full_like(tokens[:, :1], IGNORE)], dim=1)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    return {"tokens": tokens, "targets": torch.as_tensor(targets), "positions": positions,
            "key_begin": torch.zeros_like(tokens)}
