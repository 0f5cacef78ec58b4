"""Random states of a rank, as plain data: torch's, NumPy's and Python's."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from labkit.torch_versions.dispatch import no_modes


class RandomStates:
    """The generators of this process, as a component of a checkpoint: each rank has its own, also those of its GPU."""

    of_each_rank = True

    def state_dict(self) -> dict[str, Any]:
        """Return the states."""
        numpy_state: Any = np.random.get_state()
        generator, keys, position, has_gauss, gauss = numpy_state
        with no_modes():
            states = {"torch": torch.get_rng_state().clone()}
            if torch.cuda.is_available():
                states["cuda"] = torch.cuda.get_rng_state().clone()
        return {
            **{name: bytes(state.tolist()).hex() for name, state in states.items()},
            "python": random.getstate(),
            "numpy": [str(generator), keys.tolist(), int(position), int(has_gauss), float(gauss)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the states."""
        random.setstate(state["python"])
        generator, keys, *rest = state["numpy"]
        np.random.set_state((generator, np.array(keys, dtype=np.uint32), *rest))
        with no_modes():
            torch.set_rng_state(torch.tensor([*bytes.fromhex(state["torch"])], dtype=torch.uint8))
            if "cuda" in state and torch.cuda.is_available():
                torch.cuda.set_rng_state(torch.tensor([*bytes.fromhex(state["cuda"])], dtype=torch.uint8))
