"""Generating tokens for several sequences at a time, with a key-value cache or without.

Imports torch; import this module from ``setup()`` or ``run()``. Shape suffixes: B sequences of this call, R rows
(places for sequences), P prompt tokens, S tokens so far, T tokens of a pass, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aorta.workloads.models import CacheView, KVCache, TokenModel


class Decoder:
    """Holds ``rows`` sequences and continues them greedily.

    Args:
        model: The model; its spec bounds the length of a sequence.
        rows: Number of sequences held at a time.
        use_cache: Whether decoding reuses stored keys and values, or computes each sequence again.
    """

    def __init__(self, model: TokenModel, rows: int, *, use_cache: bool) -> None:
        parameter = next(model.parameters())
        self._model = model
        self._device = parameter.device
        self._cache: KVCache | None = None
        # Without attention there is nothing to cache: the last token is all that counts.
        if use_cache and model.spec.attention == "causal":
            self._cache = KVCache(model.spec, rows, parameter.device, parameter.dtype)
        self._last_token_only = use_cache
        self._tokens_RS = torch.zeros((rows, model.spec.max_positions), dtype=torch.int64, device=self._device)
        # Lengths stay on the host too, so that no pass waits for the device to know them.
        self._lengths = [0] * rows

    def prefill(self, rows: Sequence[int], prompts_BP: torch.Tensor) -> torch.Tensor:
        """Starts new sequences, forgetting what the rows held.

        Args:
            rows: Row of each prompt.
            prompts_BP: Token ids.

        Returns:
            logits_BV of the token that follows each prompt.
        """
        length = prompts_BP.shape[1]
        rows_B = self._index(rows)
        self._tokens_RS[rows_B, :length] = prompts_BP
        for row in rows:
            self._lengths[row] = length
        view = None
        if self._cache is not None:
            positions_BT = torch.arange(length, device=self._device).expand(len(rows), length)
            view = CacheView(self._cache, rows_B, positions_BT, length)
        last_B = torch.full((len(rows),), length - 1, device=self._device)
        logits_BV: torch.Tensor = self._model(prompts_BP, view, last_B)
        self._append(rows, rows_B, logits_BV)
        return logits_BV

    def decode(self, rows: Sequence[int]) -> torch.Tensor:
        """Continues sequences by one token each and returns logits_BV of the token after it."""
        rows_B = self._index(rows)
        lengths = [self._lengths[row] for row in rows]
        lengths_B = torch.tensor(lengths, device=self._device)
        if self._last_token_only:
            positions_BT = (lengths_B - 1)[:, None]
            view = CacheView(self._cache, rows_B, positions_BT, max(lengths)) if self._cache is not None else None
            tokens_BT = self._tokens_RS[rows_B[:, None], positions_BT]
            logits_BV: torch.Tensor = self._model(tokens_BT, view, torch.zeros_like(rows_B))
        else:
            # Shorter rows carry padding behind their last token, where causal attention does not look.
            logits_BV = self._model(self._tokens_RS[rows_B, : max(lengths)], None, lengths_B - 1)
        self._append(rows, rows_B, logits_BV)
        return logits_BV

    def sequence(self, row: int) -> list[int]:
        """Returns the token ids of a row, prompt first; reads from the device."""
        tokens: list[int] = self._tokens_RS[row, : self._lengths[row]].tolist()
        return tokens

    def _append(self, rows: Sequence[int], rows_B: torch.Tensor, logits_BV: torch.Tensor) -> None:
        """Appends the likeliest token to each row."""
        lengths = [self._lengths[row] for row in rows]
        if max(lengths) >= self._tokens_RS.shape[1]:
            raise ValueError(f"a sequence would exceed max_positions, which is {self._tokens_RS.shape[1]}")
        self._tokens_RS[rows_B, torch.tensor(lengths, device=self._device)] = logits_BV.argmax(-1)
        for row in rows:
            self._lengths[row] += 1

    def _index(self, rows: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(rows), device=self._device)
