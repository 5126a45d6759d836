#!/usr/bin/env python3
"""Files by the safetensors package and configs as transformers resolves them, for tests/checkpoint/checkpoint_oracle_test.cc.

checkpoint_oracle.py make OUT    writes what the test reads
checkpoint_oracle.py check OUT   reads what the test wrote to OUT/ours and compares
"""
import json
import pathlib
import sys

import safetensors
import safetensors.torch
import torch
import transformers

MINIMAL = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 30,
           "num_attention_heads": 32}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
FAMILIES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2",
            "Qwen3ForCausalLM": "qwen3"}
CHANGES = [
    {},
    {"num_key_value_heads": None, "bos_token_id": None, "eos_token_id": None},
    {"num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": True,
     "max_position_embeddings": 512, "initializer_range": 0.01, "bos_token_id": 3, "eos_token_id": [4, 5]},
    {"rope_scaling": LLAMA3},
    {"rope_scaling": {"type": "linear", "factor": 2.0}},
]
WINDOWS = {
    "MistralForCausalLM": [{"sliding_window": None}, {"sliding_window": 16}],
    "Qwen2ForCausalLM": [{"use_sliding_window": True}, {"use_sliding_window": True, "max_window_layers": 2},
                         {"use_sliding_window": False, "sliding_window": 16}],
}


def tensors():
    generator = torch.Generator().manual_seed(1)
    floats = torch.randn(7, 5, generator=generator) * 100
    return {
        "bytes": torch.arange(3, dtype=torch.uint8), "float": floats, "bfloat": floats.to(torch.bfloat16),
        "half": floats[:3].to(torch.float16), "double": floats.to(torch.float64), "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4), "int": torch.arange(-5, 5, dtype=torch.int32),
        "long": torch.arange(6).reshape(1, 2, 3) - 2**40, "a \"name\" \u00e9\n": torch.ones(1, dtype=torch.uint8),
    }


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def resolved(config):
    """What the fields mean in the end, named as in the C++ test."""
    windowed = getattr(config, "sliding_window", None)
    qwen = config.model_type.startswith("qwen")
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    theta = rope["rope_theta"] if "rope_theta" in rope else config.rope_theta
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    first = config.max_window_layers if qwen and windowed else 0
    if first >= config.num_hidden_layers:
        windowed, first = None, 0
    eos = config.eos_token_id
    return {"kv_heads": config.num_key_value_heads, "head_dim": head_dim, "max_positions": config.max_position_embeddings,
            "norm_epsilon": config.rms_norm_eps, "rope_theta": theta, "rope_factor": rope.get("factor", 1.0),
            "rope_type": rope.get("rope_type", rope.get("type", "default")), "tied": config.tie_word_embeddings,
            "window": windowed or 0, "first_window": first, "initializer_range": config.initializer_range,
            "bos": config.bos_token_id, "eos": [] if eos is None else eos if isinstance(eos, list) else [eos]}


def configs():
    for architecture, model_type in FAMILIES.items():
        for changes in CHANGES + WINDOWS.get(architecture, []):
            yield {**MINIMAL, "architectures": [architecture], "model_type": model_type, **changes}


def resolve(document):
    """None where this transformers doesn't have what the document asks for."""
    name = document["architectures"][0].replace("ForCausalLM", "Config")
    if not hasattr(transformers, name):
        return None
    if name == "MistralConfig" and document.get("rope_scaling") and int(transformers.__version__.split(".")[0]) < 5:
        return None  # its MistralConfig ignores the field
    return resolved(getattr(transformers, name).from_dict(json.loads(json.dumps(document))))


def make(out):
    (out / "ours").mkdir(parents=True, exist_ok=True)
    for old in (out / "ours").iterdir():
        old.unlink()
    named = tensors()
    safetensors.torch.save_file(named, str(out / "theirs.safetensors"), metadata={"format": "pt", "note": "\u00fc"})
    listed = []
    for i, (name, tensor) in enumerate(named.items()):
        (out / f"{i}.bin").write_bytes(raw(tensor))
        listed.append({"name": name, "shape": list(tensor.shape)})
    documents = [{"document": d, "resolved": resolve(d)} for d in configs()]
    skipped = sorted({d["document"]["architectures"][0] for d in documents if d["resolved"] is None})
    if skipped:
        print(f"not compared everywhere, because transformers {transformers.__version__} lacks it: {', '.join(skipped)}")
    (out / "expected.json").write_text(json.dumps({"tensors": listed, "configs": documents}))


def check(out):
    problems = []
    named = tensors()
    with safetensors.safe_open(str(out / "ours" / "ours.safetensors"), framework="pt") as file:
        if sorted(file.keys()) != sorted(named) or file.metadata() != {"format": "pt"}:
            problems.append(f"names {sorted(file.keys())}, metadata {file.metadata()}")
        for name in file.keys():
            got, want = file.get_tensor(name), named[name]
            if got.dtype != want.dtype or got.shape != want.shape or raw(got) != raw(want):
                problems.append(f"tensor {name!r} differs")
    compared = 0
    for i, entry in enumerate(json.loads((out / "expected.json").read_text())["configs"]):
        document = json.loads((out / "ours" / f"config-{i}.json").read_text())
        if entry["resolved"] is None:
            continue
        compared += 1
        if resolve(document) != entry["resolved"]:
            problems.append(f"config {i}: {resolve(document)} instead of {entry['resolved']}")
    for problem in problems:
        print(problem)
    print(f"{len(named)} tensors, {compared} configs compared")
    return 1 if problems or compared == 0 else 0


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    if len(sys.argv) != 3 or sys.argv[1] not in ("make", "check"):
        sys.exit(__doc__)
    sys.exit((make if sys.argv[1] == "make" else check)(pathlib.Path(sys.argv[2])))
