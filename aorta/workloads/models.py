"""The networks that the training and inference workloads run.

Imports torch; import this module from ``setup()`` or ``run()``.

Tensor names end in their shape: B batch rows, T tokens of this call, S tokens so far (cached and new), D hidden
size, H heads, K size of a head, F feed-forward size, V vocabulary, R cache rows, N = B * T, M tokens of one expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

Attention = Literal["none", "causal", "full"]


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Shape of a token model.

    Attributes:
        attention: ``none`` (every token by itself), ``causal`` (a decoder) or ``full`` (an encoder).
        hidden_size: Width of the residual stream.
        num_layers: Number of blocks.
        num_heads: Attention heads; divides ``hidden_size``.
        ffn_size: Inner width of a feed-forward network.
        vocab_size: Number of token ids.
        num_experts: Feed-forward networks a block; from 2 on a top-1 router chooses among them.
        max_positions: Longest sequence.
        gated_ffn: Whether a feed-forward network multiplies its inner values with a gate (SwiGLU).
    """

    attention: Attention
    hidden_size: int
    num_layers: int
    num_heads: int
    ffn_size: int
    vocab_size: int
    num_experts: int
    max_positions: int
    gated_ffn: bool = False


class KVCache:
    """Keys and values of the tokens that each row has seen, for all layers.

    Args:
        spec: Shape of the model.
        rows: Number of sequences that are held at a time.
        device: Where the keys and values live.
        dtype: Their dtype, that of the model.
    """

    def __init__(self, spec: ModelSpec, rows: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (rows, spec.max_positions, spec.num_heads, spec.hidden_size // spec.num_heads)
        self.k_RSHK = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(spec.num_layers)]
        self.v_RSHK = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(spec.num_layers)]


class CacheView:
    """The rows and positions of a cache that one forward pass writes and then attends to.

    Args:
        cache: The cache.
        rows_B: Cache row of each batch row.
        positions_BT: Position of each new token in its sequence; all earlier ones must have been written.
        length: Largest position + 1, known on the host, so that no value is read back from the device.
    """

    def __init__(self, cache: KVCache, rows_B: torch.Tensor, positions_BT: torch.Tensor, length: int) -> None:
        self._cache = cache
        self._rows_B = rows_B
        self.positions_BT = positions_BT
        self._length = length
        key_positions_S = torch.arange(length, device=positions_BT.device)
        self.mask_B1TS = (key_positions_S <= positions_BT[:, :, None])[:, None]

    def extend(self, layer: int, k_BTHK: torch.Tensor, v_BTHK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores the new keys and values and returns all of them so far, as k_BSHK and v_BSHK."""
        at = (self._rows_B[:, None], self.positions_BT)
        k_RSHK, v_RSHK = self._cache.k_RSHK[layer], self._cache.v_RSHK[layer]
        k_RSHK[at] = k_BTHK
        v_RSHK[at] = v_BTHK
        return k_RSHK[self._rows_B, : self._length], v_RSHK[self._rows_B, : self._length]


class SelfAttention(nn.Module):  # type: ignore[misc]
    """Multi-head attention, with or without a cache of keys and values."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self._heads = spec.num_heads
        self._causal = spec.attention == "causal"
        self._layer = layer
        self.qkv = nn.Linear(spec.hidden_size, 3 * spec.hidden_size, bias=False)
        self.out = nn.Linear(spec.hidden_size, spec.hidden_size, bias=False)

    def forward(self, x_BTD: torch.Tensor, cache: CacheView | None) -> torch.Tensor:
        """Returns the attended values, x_BTD."""
        q_BTHK, k_BTHK, v_BTHK = self.qkv(x_BTD).unflatten(-1, (3, self._heads, -1)).unbind(2)
        q_BHTK = q_BTHK.transpose(1, 2)
        if cache is None:
            k_BHTK, v_BHTK = k_BTHK.transpose(1, 2), v_BTHK.transpose(1, 2)
            o_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=self._causal)
        else:
            k_BSHK, v_BSHK = cache.extend(self._layer, k_BTHK, v_BTHK)
            o_BHTK = F.scaled_dot_product_attention(
                q_BHTK, k_BSHK.transpose(1, 2), v_BSHK.transpose(1, 2), attn_mask=cache.mask_B1TS
            )
        out: torch.Tensor = self.out(o_BHTK.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):  # type: ignore[misc]
    """Two linear layers with a GELU between them."""

    def __init__(self, hidden_size: int, ffn_size: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden_size, ffn_size, bias=False)
        self.down = nn.Linear(ffn_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Works on the last dimension, D in and out."""
        out: torch.Tensor = self.down(F.gelu(self.up(x)))
        return out


class GatedFeedForward(nn.Module):  # type: ignore[misc]
    """Two linear layers side by side, one of them as a SiLU gate of the other, and one that joins them (SwiGLU)."""

    def __init__(self, hidden_size: int, ffn_size: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden_size, ffn_size, bias=False)
        self.up = nn.Linear(hidden_size, ffn_size, bias=False)
        self.down = nn.Linear(ffn_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Works on the last dimension, D in and out."""
        out: torch.Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class ExpertFeedForward(nn.Module):  # type: ignore[misc]
    """A mixture of feed-forward networks: a router sends each token to the one it scores highest.

    Args:
        hidden_size: Width of a token.
        ffn_size: Inner width of each network.
        num_experts: Number of networks.
        expert: Kind of the networks.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_size: int,
        num_experts: int,
        expert: type[FeedForward | GatedFeedForward] = FeedForward,
    ) -> None:
        super().__init__()
        self.router = nn.Linear(hidden_size, num_experts, bias=False)
        self.experts = nn.ModuleList(expert(hidden_size, ffn_size) for _ in range(num_experts))

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Returns the chosen expert's output for each token, scaled by its probability so the router learns."""
        x_ND = x_BTD.flatten(0, -2)
        probability_N, chosen_N = self.router(x_ND).float().softmax(-1).max(-1)
        y_ND = torch.zeros_like(x_ND)
        for number, expert in enumerate(self.experts):
            # An expert without tokens runs too: on zero rows, so that each parameter has a gradient on every
            # rank, which DDP waits for.
            index_M = (chosen_N == number).nonzero()[:, 0]
            y_ND = y_ND.index_copy(0, index_M, expert(x_ND[index_M]).to(y_ND.dtype))
        return (y_ND * probability_N[:, None].to(y_ND.dtype)).view_as(x_BTD)


class Block(nn.Module):  # type: ignore[misc]
    """Norm, attention (unless the model has none), norm, feed-forward, each with a residual."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.attention: SelfAttention | None = None
        if spec.attention != "none":
            self.attention_norm = nn.LayerNorm(spec.hidden_size)
            self.attention = SelfAttention(spec, layer)
        self.ffn_norm = nn.LayerNorm(spec.hidden_size)
        kind = GatedFeedForward if spec.gated_ffn else FeedForward
        self.ffn = (
            ExpertFeedForward(spec.hidden_size, spec.ffn_size, spec.num_experts, kind)
            if spec.num_experts >= 2
            else kind(spec.hidden_size, spec.ffn_size)
        )

    def forward(self, x_BTD: torch.Tensor, cache: CacheView | None = None) -> torch.Tensor:
        """Returns the next block's input, x_BTD."""
        if self.attention is not None:
            x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cache)
        out: torch.Tensor = x_BTD + self.ffn(self.ffn_norm(x_BTD))
        return out


class TokenModel(nn.Module):  # type: ignore[misc]
    """Token ids to logits over the vocabulary.

    Args:
        spec: Shape of the model. Parameters are drawn from torch's global generator: seed it first.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embed = nn.Embedding(spec.vocab_size, spec.hidden_size)
        if spec.attention != "none":
            self.positions = nn.Embedding(spec.max_positions, spec.hidden_size)
        self.blocks = nn.ModuleList(Block(spec, layer) for layer in range(spec.num_layers))
        self.norm = nn.LayerNorm(spec.hidden_size)
        self.head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        # torch's default of 1 for embeddings makes the first logits, and so the first gradients, needlessly large.
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(
        self, tokens_BT: torch.Tensor, cache: CacheView | None = None, last_B: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Computes logits.

        Args:
            tokens_BT: Token ids.
            cache: Where the tokens stand in cached sequences; None for whole sequences from position 0.
            last_B: Index along T of the one token of each row whose logits are wanted.

        Returns:
            logits_BTV, or logits_BV with ``last_B``.
        """
        x_BTD = self.embed(tokens_BT)
        if self.spec.attention != "none":
            at = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) if cache is None else cache.positions_BT
            x_BTD = x_BTD + self.positions(at)
        for block in self.blocks:
            x_BTD = block(x_BTD, cache)
        if last_B is not None:
            x_BTD = x_BTD[torch.arange(last_B.shape[0], device=last_B.device), last_B]
        logits: torch.Tensor = self.head(self.norm(x_BTD))
        return logits


def build_model(spec: ModelSpec, seed: int) -> TokenModel:
    """Builds a model in float32 on the CPU, the same on every host and rank for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TokenModel(spec)


def parameter_count(model: nn.Module) -> int:
    """Returns the number of parameters of the whole model, whatever part of it this rank holds."""
    return sum(p.numel() for p in model.parameters())
