"""What the libraries of a GPU keep and take besides the tensors torch shows: cuDNN's, for recurrent layers.

On the CPU, behind the stand-ins, other kernels run. So it is counted as cuDNN was seen to do it: for each layer and
direction of an LSTM, five times its output is kept for the backward pass, and while a pass runs, room is taken for six
outputs, its input, and its weights twice. `tests/ecosystem/test_rehearsal_real_models.py` holds the peak against that
of a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchmove.rehearsal.memory import Meter

aten = torch.ops.aten
_KEPT, _TAKEN = 5, 6


def weigh(meter: Meter, func: Any, behind: Sequence[Any], out: Any) -> None:
    """Count what an operation, done with tensors that stand behind others, would keep and take more on the device."""
    if func is aten.mkldnn_rnn_layer.default:
        meter.take(_passing(behind, out[0]))
        if behind[-1] and out[3] is not None:  # it trains
            meter.see(out[3], _KEPT * out[0].nbytes)
    elif func is aten.mkldnn_rnn_layer_backward.default:
        meter.take(_passing(behind, behind[7]))


def _passing(behind: Sequence[Any], output: Tensor) -> int:
    layer, *weights = behind[:5]
    return int(_TAKEN * output.nbytes + layer.nbytes + 2 * sum(weight.nbytes for weight in weights))
