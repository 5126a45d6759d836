"""The tiny models that stand for every option of the supported families, and how their folders are written."""
import json

import torch
import transformers
from safetensors.torch import save_file

import reference_model

SMALL = dict(hidden_size=64, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=131, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
             tie_word_embeddings=False, initializer_range=0.02)


class Variant:
    def __init__(self, name, family, dtype=torch.float32, shard=None, **fields):
        self.name = name
        self.family = family  # Llama, Mistral, Qwen2, Qwen3
        self.dtype = dtype  # of the stored weights
        self.shard = shard  # largest size of a safetensors file, or one file
        self.fields = {**SMALL, **fields}

    def config_json(self):
        """What config.json has to say, at least."""
        return {"architectures": [self.family + "ForCausalLM"], "model_type": self.family.lower(), "hidden_act": "silu",
                "torch_dtype": str(self.dtype).split(".")[1], **self.fields}


VARIANTS = [
    Variant("llama-untied", "Llama"),
    Variant("llama-tied-mqa", "Llama", tie_word_embeddings=True, num_key_value_heads=1, num_hidden_layers=3),
    Variant("llama-llama3-sharded", "Llama", shard="60KB", rope_theta=500000.0,
            rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                              original_max_position_embeddings=32)),
    Variant("llama-linear-bf16", "Llama", dtype=torch.bfloat16, num_key_value_heads=4,
            rope_scaling=dict(rope_type="linear", factor=4.0)),
    Variant("mistral-window", "Mistral", sliding_window=5, head_dim=24),
    Variant("mistral-full", "Mistral", sliding_window=None, num_hidden_layers=1),
    Variant("qwen2-tied", "Qwen2", tie_word_embeddings=True, rope_theta=1000000.0, use_sliding_window=False,
            sliding_window=4, max_window_layers=1),
    Variant("qwen2-window", "Qwen2", num_hidden_layers=3, use_sliding_window=True, sliding_window=6, max_window_layers=1),
    Variant("qwen3", "Qwen3", head_dim=40, rms_norm_eps=1e-6, rope_theta=1000000.0, attention_bias=False,
            use_sliding_window=False, sliding_window=None, max_window_layers=2),
    Variant("qwen3-tied-odd-bf16", "Qwen3", dtype=torch.bfloat16, shard="20KB", hidden_size=60, intermediate_size=50,
            num_attention_heads=3, num_key_value_heads=1, head_dim=22, vocab_size=97, tie_word_embeddings=True,
            attention_bias=False, use_sliding_window=False, sliding_window=None, max_window_layers=2,
            # As transformers 5 writes it.
            rope_parameters=dict(rope_type="default", rope_theta=100000.0)),
]


def parameter_shapes(config):
    """{Hugging Face name: shape} in the order of a forward pass."""
    q, kv, h, f = config.heads * config.head_dim, config.kv_heads * config.head_dim, config.hidden, config.mlp
    shapes = {"model.embed_tokens.weight": (config.vocabulary, h)}
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (h,)
        for name, size in (("q", q), ("k", kv), ("v", kv)):
            shapes[prefix + f"self_attn.{name}_proj.weight"] = (size, h)
            if config.qkv_bias:
                shapes[prefix + f"self_attn.{name}_proj.bias"] = (size,)
        if config.qk_norm:
            shapes[prefix + "self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[prefix + "self_attn.k_norm.weight"] = (config.head_dim,)
        shapes[prefix + "self_attn.o_proj.weight"] = (h, q)
        shapes[prefix + "post_attention_layernorm.weight"] = (h,)
        shapes[prefix + "mlp.gate_proj.weight"] = (f, h)
        shapes[prefix + "mlp.up_proj.weight"] = (f, h)
        shapes[prefix + "mlp.down_proj.weight"] = (h, f)
    shapes["model.norm.weight"] = (h,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocabulary, h)
    return shapes


def random_parameters(config, seed, dtype):
    """Weights far from an initialisation, so that no term of the mathematics is hidden by a 0 or a 1."""
    generator = torch.Generator().manual_seed(seed)
    parameters = {}
    for name, shape in parameter_shapes(config).items():
        if len(shape) == 2:
            values = torch.randn(shape, generator=generator) / shape[1] ** 0.5
        elif name.endswith(".bias"):
            values = 0.3 * torch.randn(shape, generator=generator)
        else:
            values = 0.5 + torch.rand(shape, generator=generator)
        parameters[name] = values.to(dtype)
    return parameters


def write_folder(variant, folder, seed=0):
    """A Hugging Face folder, by transformers' own writer where this version knows the family."""
    folder.mkdir(parents=True, exist_ok=True)
    config = reference_model.Config(variant.config_json())
    parameters = random_parameters(config, seed, variant.dtype)
    model_class = getattr(transformers, variant.family + "ForCausalLM", None)
    if model_class is None:
        write_plain(variant, folder, parameters)
        return
    model = model_class(getattr(transformers, variant.family + "Config")(**variant.fields)).to(variant.dtype)
    state = dict(parameters)
    if config.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    model.save_pretrained(folder, max_shard_size=variant.shard or "1GB")


def write_plain(variant, folder, parameters):
    """The same files without transformers; `shard` becomes two files cut in the middle."""
    (folder / "config.json").write_text(json.dumps(variant.config_json(), indent=2) + "\n")
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": variant.fields["bos_token_id"], "eos_token_id": variant.fields["eos_token_id"]}))
    names = list(parameters)
    if variant.shard is None:
        save_file(parameters, folder / "model.safetensors", metadata={"format": "pt"})
        return
    half = len(names) // 2
    weight_map = {}
    for number, part in enumerate((names[:half], names[half:]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({n: parameters[n] for n in part}, folder / file, metadata={"format": "pt"})
        weight_map.update({n: file for n in part})
    total = sum(p.numel() * p.element_size() for p in parameters.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def packed_batch(vocabulary, rows, length, seed, supervised_share=0.8):
    """Rows of several documents each: targets within a document only, some of them unsupervised."""
    generator = torch.Generator().manual_seed(seed)

    def below(limit):
        return int(torch.randint(limit, (1,), generator=generator))

    tokens = torch.randint(vocabulary, (rows, length), generator=generator)
    targets = torch.full_like(tokens, reference_model.IGNORE)
    positions, key_begin = torch.zeros_like(tokens), torch.zeros_like(tokens)
    for row in range(rows):
        begin = 0
        while begin < length:
            # One row is a single document, so that a whole row's distance occurs; others hold one-token documents too.
            size = length if row == 0 else min(1 + below(length // 2), length - begin)
            end = begin + size
            positions[row, begin:end] = torch.arange(size)
            key_begin[row, begin:end] = begin
            keep = torch.rand(size - 1, generator=generator) < supervised_share
            targets[row, begin:end - 1] = torch.where(keep, tokens[row, begin + 1:end], targets[row, begin:end - 1])
            begin = end
    batch = {"tokens": tokens, "targets": targets, "positions": positions, "key_begin": key_begin}
    return {name: value.to(torch.int32) for name, value in batch.items()}
