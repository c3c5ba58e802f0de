"""ERNIE 4.5 and Llama, dense, forward in float64: written from the papers' formulas, for comparison only."""

import numpy as np


def rms_norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotate(x, theta, *, interleaved):
    """RoPE on (positions, heads, head_dim): neighbours (ERNIE), or the two halves (Llama on Hugging Face)."""
    positions, _, dim = x.shape
    angles = np.arange(positions)[:, None] * theta ** (-np.arange(0, dim, 2) / dim)
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., : dim // 2], x[..., dim // 2 :])
    turned = first * cos - second * sin, second * cos + first * sin
    return np.stack(turned, -1).reshape(x.shape) if interleaved else np.concatenate(turned, -1)


def attention(x, weights, at, config, *, interleaved):
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    count = len(x)
    q, k, v = (x @ weights[f"{at}self_attn.{part}_proj.weight"].T for part in "qkv")
    q = rotate(q.reshape(count, heads, dim), config["rope_theta"], interleaved=interleaved)
    k = rotate(k.reshape(count, kv_heads, dim), config["rope_theta"], interleaved=interleaved)
    k, v = (np.repeat(part.reshape(count, kv_heads, dim), heads // kv_heads, axis=1) for part in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
    scores = np.where(np.tril(np.ones((count, count), bool)), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v)
    return mixed.reshape(count, heads * dim) @ weights[f"{at}self_attn.o_proj.weight"].T


def feed_forward(x, weights, at):
    gate, up = (x @ weights[f"{at}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
    return (gate / (1 + np.exp(-gate)) * up) @ weights[f"{at}mlp.down_proj.weight"].T


def logits(tokens, weights, config, *, interleaved=True):
    """Scores of the next token after `tokens`."""
    weights = {name: values.astype(np.float64) for name, values in weights.items()}
    epsilon = config["rms_norm_eps"]
    x = weights["model.embed_tokens.weight"][list(tokens)]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        x = x + attention(
            rms_norm(x, weights[at + "input_layernorm.weight"], epsilon), weights, at, config, interleaved=interleaved
        )
        x = x + feed_forward(rms_norm(x, weights[at + "post_attention_layernorm.weight"], epsilon), weights, at)
    x = rms_norm(x[-1], weights["model.norm.weight"], epsilon)
    return weights.get("lm_head.weight", weights["model.embed_tokens.weight"]) @ x


def generate(tokens, weights, config, count, *, interleaved=True):
    """`count` greedy tokens, and the narrowest lead that the best had over the second."""
    made, lead = [], np.inf
    for _ in range(count):
        scores = logits([*tokens, *made], weights, config, interleaved=interleaved)
        second, best = np.sort(scores)[-2:]
        lead = min(lead, best - second)
        made.append(int(scores.argmax()))
    return made, lead
