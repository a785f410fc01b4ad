"""Hooks every module of the process, collects a step's measurements on the devices, and reads them once at its end.

Nothing here may change or end the run that is watched: hooks return nothing, gradients are seen by hooks on tensors,
which leave the graph alone, and whatever goes wrong is warned about once and then left out. Imports torch.
"""

from __future__ import annotations

import contextlib
import gc
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optimizers

from aorta.instrumentation.layer_numerics.capture import MOST_BYTES, BadValues, Key, TensorCopy
from aorta.instrumentation.layer_numerics.choice import Choice, Followed, channel_of
from aorta.instrumentation.layer_numerics.log import Log, row
from aorta.instrumentation.layer_numerics.nested import named_in, names_in, tensors_in
from aorta.instrumentation.layer_numerics.spec import Spec, Warn
from aorta.instrumentation.layer_numerics.stats import (
    FIELDS,
    first_bad_positions,
    local_values,
    measure,
    merge,
    to_host,
)

_NAN, _INF, _OOB = (FIELDS.index(f"{kind}_count") for kind in ("nan", "inf", "oob"))


class _Layer:
    """What is known of a module: its name, and what is measured of it."""

    def __init__(self, name: str, channels: frozenset[str], follows: tuple[Followed, ...]) -> None:
        self.name, self.channels, self.follows = name, channels, follows


class _Measured:
    """The measurements of one layer and channel in this step, on its device."""

    def __init__(self, vector: torch.Tensor) -> None:
        self.vector = vector
        self.index: torch.Tensor | None = None
        self.address: int | None = None
        self.values: BadValues | None = None

    def whole(self) -> torch.Tensor:
        """Returns everything that is to be read, as one vector."""
        return self.vector if self.index is None else torch.cat([self.vector, self.index.reshape(1)])


class Session:
    """Measures from its making to :meth:`close`.

    Args:
        spec: What to measure.
        rank: This process's rank.
        warn: Told, once each, what cannot be measured.
        told: What was told already, of the specification; the summary has it too.

    Raises:
        OSError: The log cannot be made.
    """

    def __init__(self, spec: Spec, rank: int, warn: Warn, told: Sequence[str] = ()) -> None:
        self._spec = spec
        self._said: set[str] = set(told)
        self._log = Log(spec.folder, rank, spec.sample_every, spec.pre_context)
        for message in told:
            self._log.warn(message)
        self._tell = warn
        self._folder, self._rank = spec.folder, rank
        self._layers: weakref.WeakKeyDictionary[torch.nn.Module, _Layer] = weakref.WeakKeyDictionary()
        self._roots = 0
        self._choice = Choice(spec)
        self._unmet: list[str] = []
        self._said_large = False
        self._copy = TensorCopy() if "dump_tensor" in spec.diagnostics else None
        self._depth = 0
        self._step = 0
        self._calls = 0
        self._measured: dict[tuple[str, str], _Measured] = {}
        self._by_optimizer: bool | None = None if spec.step_end == "auto" else spec.step_end == "optimizer"
        self._closed = False
        self._handles = [
            hooks.register_module_forward_pre_hook(self._guarded(self._before_forward)),
            hooks.register_module_forward_hook(self._guarded(self._after_forward), with_kwargs=True, always_call=True),
            optimizers.register_optimizer_step_pre_hook(self._guarded(self._before_update)),
            optimizers.register_optimizer_step_post_hook(self._guarded(self._after_update)),
        ]

    def close(self) -> None:
        """Ends the last step, takes the hooks away and writes the summary; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for handle in self._handles:
            handle.remove()
        self._guarded(self._end_step)()
        self._guarded(self._tell_unmet)()
        try:
            self._log.close()
        except (OSError, ValueError) as error:
            self._warn(f"the summary cannot be written: {error}")

    def _warn(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._tell(message)
            # A full disk is no reason to end the run; close() says so.
            with contextlib.suppress(OSError):
                self._log.warn(message)

    def _tell_unmet(self) -> None:
        before, self._unmet = self._unmet, self._choice.unmet()
        told = {message.partition(";")[0] for message in before}
        unmet = {message.partition(";")[0] for message in self._unmet}
        for message in before:
            self._log.unwarn(message)
        for message in self._unmet:
            # Of what was told only the list of what there is may have grown.
            if message.partition(";")[0] in told:
                self._log.warn(message)
            else:
                self._warn(message)
        for start in sorted(told - unmet):
            self._tell(f"no longer true: {start}")

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        def guarded(*args: Any) -> None:
            # Inside a compiler's trace there are no values to look at.
            if torch.compiler.is_compiling():
                return
            try:
                function(*args)
            except Exception as error:
                self._warn(f"{function.__name__.strip('_')}: {type(error).__name__}: {error}")

        return guarded

    @property
    def _is_measuring(self) -> bool:
        return self._spec.pre_context > 0 or self._step % self._spec.sample_every == 0

    def _before_forward(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        self._depth += 1
        if self._depth == 1:
            self._begin_model(module)
        layer = self._layers.get(module)
        if layer is None or not self._is_measuring:
            return
        if "input" in layer.channels:
            self._take_all(layer, "input", args)
        for channel in ("weight", "bias"):
            # A weight that many calls share in a step is measured once.
            if channel in layer.channels and (layer.name, channel) not in self._measured:
                self._take(layer.name, channel, getattr(module, channel, None))
        if "igrad" in layer.channels and torch.is_grad_enabled():
            self._take_gradients(layer.name, args)

    def _after_forward(self, module: torch.nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        self._depth = max(0, self._depth - 1)
        layer = self._layers.get(module)
        if layer is None or not self._is_measuring:
            return
        if "input" in layer.channels and kwargs:
            self._take_all(layer, "input", kwargs)
        if "igrad" in layer.channels and torch.is_grad_enabled() and kwargs:
            self._take_gradients(layer.name, kwargs)
        if "output" in layer.channels:
            self._take_all(layer, "output", output)
        for followed in layer.follows:
            for place, value in (("input", (args, kwargs)), ("output", output)):
                if followed.follow.at in ("stage", place):
                    self._take_followed(layer.name, followed, place, value)

    def _before_update(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._is_measuring:
            for module, layer in list(self._layers.items()):
                if "grad" in layer.channels:
                    for parameter in module.parameters(recurse=False):
                        self._take(layer.name, "grad", parameter.grad)

    def _after_update(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._spec.step_end == "auto":
            self._by_optimizer = True
        if self._by_optimizer:
            self._end_step()

    def _begin_model(self, model: torch.nn.Module) -> None:
        """At each call of a whole model: learns its layers, and ends the step of the one before where that is due."""
        if self._by_optimizer is None and self._calls:
            # The first step has no update yet to tell that there will be some. The type is asked, not the object: a
            # proxy's may be gone.
            self._by_optimizer = any(issubclass(type(item), torch.optim.Optimizer) for item in gc.get_objects())
        if self._by_optimizer is False and self._calls:
            self._end_step()
        self._calls += 1
        if model not in self._layers:
            self._learn(model)

    def _learn(self, model: torch.nn.Module) -> None:
        # Several models may have layers of equal names.
        prefix = "" if self._roots == 0 else f"{type(model).__name__}{self._roots}:"
        self._roots += 1
        for path, module in model.named_modules():
            name = f"{prefix}{path or type(model).__name__}"
            kind, is_leaf = type(module).__name__, next(module.children(), None) is None
            self._layers[module] = _Layer(name, *self._choice.of(name, kind, is_leaf))

    def _take_all(self, layer: _Layer, channel: str, value: Any) -> None:
        for tensor in tensors_in(value):
            self._take(layer.name, channel, tensor)

    def _take_followed(self, name: str, followed: Followed, place: str, value: Any) -> None:
        for tensor in named_in(value, followed.follow.tensor):
            followed.is_found = True
            self._take(name, channel_of(followed.follow, place), tensor, followed.follow.bounds)
        if not followed.is_found:
            followed.hear(names_in(value))

    def _take_gradients(self, name: str, value: Any) -> None:
        step = self._step
        take = self._guarded(lambda gradient: self._take(name, "igrad", gradient) if step == self._step else None)
        for tensor in tensors_in(value):
            if tensor.requires_grad:
                tensor.register_hook(take)

    def _take(self, name: str, channel: str, value: Any, bounds: tuple[float, float] | None = None) -> None:
        """Measures a tensor on its device; several in one step are joined."""
        if (tensor := local_values(value)) is None or not (tensor.is_floating_point() or bounds is not None):
            return
        with torch.no_grad():
            vector = measure(tensor, self._spec.huge, bounds)
            known = self._measured.get((name, channel))
            if known is None:
                known = self._measured[name, channel] = _Measured(vector)
                if "addr" in self._spec.diagnostics:
                    known.address = tensor.data_ptr()
            else:
                known.vector = merge(known.vector, vector.to(known.vector.device))
            if "locate" in self._spec.diagnostics:
                index = first_bad_positions(tensor, 1)[0].to(known.vector.device, torch.float64)
                known.index = index if known.index is None else torch.where(known.index < 0, index, known.index)
            if "bad_values" in self._spec.diagnostics:
                known.values = known.values or BadValues()
                known.values.add(tensor, bounds)
            if self._copy is not None:
                self._copy.offer((name, channel), tensor, vector[_NAN] + vector[_INF] + vector[_OOB] > 0)

    def _end_step(self) -> None:
        """Reads everything that the step has measured with one copy from each device."""
        step, measured, self._measured = self._step, self._measured, {}
        self._step += 1
        self._calls = 0
        self._choice.note_measured(measured)
        # A run may be killed, and a user wants to know at once; what is met later is taken back.
        if step == 0 and self._roots and not self._closed:
            self._tell_unmet()
        if not measured:
            return
        with torch.no_grad():
            read = to_host([one.whole() for one in measured.values()])
        bad = [key for key, values in zip(measured, read, strict=True) if values[_NAN] or values[_INF] or values[_OOB]]
        bad_values = self._read_values(measured, bad)
        rows = []
        for ((layer, channel), one), values in zip(measured.items(), read, strict=True):
            more: dict[str, Any] = {}
            if one.index is not None:
                index = int(values.pop())
                more["first_bad_index"] = index if index >= 0 else None
            if one.address is not None:
                more["addr"] = hex(one.address)
            if (layer, channel) in bad_values:
                more["bad_values"] = bad_values[layer, channel]
            rows.append(row(step, layer, channel, values, more))
        had_bad = self._log.has_bad
        self._log.add_step(step, rows)
        if "alloc_snapshot" in self._spec.diagnostics and self._log.has_bad and not had_bad:
            self._write_allocations()

        if self._copy is not None:
            if bad:
                self._guarded(self._save_tensor)(self._copy, step, bad)
            self._copy.end_step()

    def _read_values(self, measured: Mapping[Key, _Measured], bad: Sequence[Key]) -> dict[Key, list[dict[str, Any]]]:
        values = {key: kept for key in bad if (kept := measured[key].values) is not None}
        if not values:
            return {}
        try:
            with torch.no_grad():
                read = to_host([kept.vector() for kept in values.values()])
            return {key: kept.told(vector) for (key, kept), vector in zip(values.items(), read, strict=True)}
        except Exception as error:  # the counts of the bad step are worth more
            self._warn(f"bad_values: {type(error).__name__}: {error}")
            return {}

    def _save_tensor(self, copy: TensorCopy, step: int, bad: Sequence[Key]) -> None:
        if (large := copy.too_large(bad)) is not None and not self._said_large:
            self._said_large = True
            (layer, channel), size = large
            self._warn(
                f"dump_tensor: {channel} of {layer} has {size / (1 << 20):.0f} MiB in step {step}, more than the"
                f" {MOST_BYTES >> 20} MiB that are kept; it is not saved, nor are others of that size"
            )
        if (taken := copy.take()) is None:
            return
        (layer, channel), tensor = taken
        name = f"tensor_rank{self._rank}_step{step}.pt"
        whole = os.path.join(self._folder, name)
        about = {"step": step, "layer": layer, "channel": channel}
        torch.save({**about, "tensor": tensor}, f"{whole}.part")
        os.replace(f"{whole}.part", whole)
        kind = str(tensor.dtype).removeprefix("torch.")
        self._log.add_tensor({"file": name, **about, "shape": list(tensor.shape), "dtype": kind})

    def _write_allocations(self) -> None:
        if not torch.cuda.is_available():
            self._warn("alloc_snapshot: there is no device whose allocations could be listed")
            return
        torch.cuda.memory._dump_snapshot(os.path.join(self._folder, f"allocations_rank{self._rank}.pickle"))
