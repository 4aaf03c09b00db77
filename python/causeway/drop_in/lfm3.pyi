from types import ModuleType
from typing import Any

from torch import Tensor

from causeway.drop_in import Removable

MODULE: str

def causal_conv1d_fn(
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    seq_idx: Tensor | None = None,
    **kwargs: Any,
) -> Tensor: ...
def causal_conv1d_update(
    hidden_states: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor: ...

class Replaced(Removable):
    def __init__(self, module: ModuleType, functions: dict[str, Any]) -> None: ...
    def remove(self) -> None: ...

def install() -> Replaced: ...
