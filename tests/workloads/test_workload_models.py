"""Models and decoding: the cache is real, and right."""

from __future__ import annotations

import pytest
import torch

from aorta.workloads.decoding import Decoder
from aorta.workloads.models import ExpertFeedForward, GatedFeedForward, ModelSpec, TokenModel, build_model


def tiny(attention: str = "causal", num_experts: int = 1) -> TokenModel:
    spec = ModelSpec(
        attention=attention,  # type: ignore[arg-type]
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        ffn_size=32,
        vocab_size=50,
        num_experts=num_experts,
        max_positions=16,
    )
    # Weights of a trained model's size, so that attention is not uniform and a wrong mask shows.
    model = build_model(spec, seed=7).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(3)
    return model


def prompts(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("attention", ["causal", "none"])
@pytest.mark.parametrize("num_experts", [1, 3])
@torch.inference_mode()
def test_cached_decode_agrees_with_a_full_forward_pass(attention: str, num_experts: int) -> None:
    """Each decode pass gives the logits that the whole sequence gives at its last token."""
    model = tiny(attention, num_experts)
    decoder = Decoder(model, 2, use_cache=True)
    decoder.prefill([0, 1], prompts(2, 5))
    for _ in range(6):
        sequences = torch.tensor([decoder.sequence(row) for row in (0, 1)])
        torch.testing.assert_close(decoder.decode([0, 1]), model(sequences)[:, -1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("use_cache", [True, False])
@torch.inference_mode()
def test_rows_of_different_lengths_do_not_mix(use_cache: bool) -> None:
    """Rows that joined later, and a row that was taken again, decode as if they were alone."""
    model = tiny()
    decoder = Decoder(model, 3, use_cache=use_cache)
    decoder.prefill([2], prompts(1, 9, seed=1))
    decoder.prefill([0], prompts(1, 7, seed=2))
    decoder.decode([0, 2])
    decoder.prefill([1, 2], prompts(2, 3, seed=3))
    for rows in ([2, 0, 1], [1, 0], [0, 1, 2]):
        alone = [model(torch.tensor([decoder.sequence(row)]))[0, -1] for row in rows]
        torch.testing.assert_close(decoder.decode(rows), torch.stack(alone), atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_decode_computes_one_token_a_row_with_the_cache() -> None:
    """With the cache a decode pass embeds only the new token; without it, the whole sequence."""
    embedded = {}
    for use_cache in (True, False):
        model = tiny()
        decoder = Decoder(model, 2, use_cache=use_cache)
        decoder.prefill([0, 1], prompts(2, 5))
        shapes: list[tuple[int, ...]] = []
        model.embed.register_forward_hook(lambda _m, args, _o, shapes=shapes: shapes.append(tuple(args[0].shape)))
        decoder.decode([0, 1])
        embedded[use_cache] = shapes
    assert embedded == {True: [(2, 1)], False: [(2, 6)]}


@torch.inference_mode()
def test_decode_reads_the_stored_keys() -> None:
    """Damaging a cached key changes the logits: they come from the cache."""
    results = []
    for damage in (0.0, 5.0):
        decoder = Decoder(tiny(), 1, use_cache=True)
        decoder.prefill([0], prompts(1, 5))
        assert decoder._cache is not None
        decoder._cache.k_RSHK[0][0, 2] += damage
        results.append(decoder.decode([0]))
    assert not torch.equal(*results)


@torch.inference_mode()
def test_a_sequence_cannot_outgrow_its_row() -> None:
    """Running past the longest position is an error, not a wrong token."""
    decoder = Decoder(tiny(), 1, use_cache=True)
    decoder.prefill([0], prompts(1, 15))
    with pytest.raises(ValueError, match="max_positions, which is 16"):
        decoder.decode([0])


@torch.inference_mode()
def test_causal_model_ignores_the_future_and_encoder_does_not() -> None:
    """Changing the last token changes earlier logits only where attention goes both ways."""
    tokens = prompts(1, 6)
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 50
    earlier = {a: torch.equal(tiny(a)(tokens)[:, :-1], tiny(a)(changed)[:, :-1]) for a in ("causal", "full", "none")}
    assert earlier == {"causal": True, "full": False, "none": True}


def test_each_token_goes_to_its_best_expert() -> None:
    """The mixture's output is the best-scored expert's, scaled by its probability."""
    torch.manual_seed(0)
    moe = ExpertFeedForward(8, 16, 3)
    x = torch.randn(2, 5, 8)
    probabilities = moe.router(x).softmax(-1)
    expected = torch.empty_like(x)
    for b in range(2):
        for t in range(5):
            best = int(probabilities[b, t].argmax())
            expected[b, t] = moe.experts[best](x[b, t]) * probabilities[b, t, best]
    torch.testing.assert_close(moe(x), expected)


def test_every_expert_gets_a_gradient() -> None:
    """An expert that no token chose still has (zero) gradients, which data parallelism waits for."""
    moe = ExpertFeedForward(8, 16, 4)
    moe(torch.randn(1, 1, 8)).sum().backward()
    assert all(p.grad is not None for p in moe.parameters())


def test_building_a_model_leaves_the_random_state_alone() -> None:
    """Two trials in one process do not influence each other through torch's generator."""
    before = torch.random.get_rng_state()
    first, second = tiny(), tiny()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_gate_multiplies_the_inner_values() -> None:
    """SwiGLU: the SiLU of one projection times another, projected back."""
    ffn = GatedFeedForward(8, 16)
    x = torch.randn(2, 3, 8)
    gate, up = x @ ffn.gate.weight.T, x @ ffn.up.weight.T
    torch.testing.assert_close(ffn(x), (gate * gate.sigmoid() * up) @ ffn.down.weight.T)
