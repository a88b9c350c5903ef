"""`record`: one step under the recorder, run again beside a single device, if there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from placealg.errors import InputError
from placealg.watch.recorder.observe import observe
from placealg.watch.recorder.single import Reference, beside, traced
from placealg.watch.recorder.trace import tracing
from placealg.watch.seen import Seen


def record(step: Callable[[], object], model: nn.Module | Sequence[nn.Module],
           mesh: DeviceMesh | Mapping[str, int] | None = None, *,
           reference: tuple[nn.Module, Callable[[nn.Module, Any], Tensor]] | None = None, batch: Any = None,
           clip: float = 0.0, shims: Iterable[str] = ()) -> Seen:
    """What all ranks saw of the second of two steps, which is run again beside a `reference` where there is one.

    The first step has no gradients and no moments of an earlier one, which a wrong step keeps or loses. `reference` is
    the single device's model and what gives the losses of each token of it on `batch`, which is what all ranks together
    train on in a step: (sequences, tokens), whose sum is the loss. `clip` is the norm to which it clips, 0 for none.
    Without a reference nothing is claimed of what ops compute.
    """
    single = None if reference is None else _reference(reference, batch, clip)
    step()
    if single is None:
        with observe(model, mesh, shims=shims) as observation:
            step()
        return observation.seen
    with observe(model, mesh, shims=shims) as observation, tracing(model) as followed:
        step()
    return beside(observation.seen, followed.trace, lambda: traced(single, followed))


def _reference(reference: Any, batch: Any, clip: float) -> Reference:
    if not (isinstance(reference, tuple) and len(reference) == 2 and isinstance(reference[0], nn.Module)
            and callable(reference[1])):
        raise InputError("the reference is (the single device's model, what gives the losses of each of its tokens)")
    if not clip >= 0:
        raise InputError(f"{clip:g} is no norm", where="clip")
    return Reference(reference[0], reference[1], batch, float(clip))
