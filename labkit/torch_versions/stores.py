"""torch's own key-value stores: virtual ranks have others under these names in `torch.distributed`."""

from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

__all__ = ["FileStore", "PrefixStore", "Store", "TCPStore", "wait_for"]


def wait_for(store: Store, keys: Sequence[str], limit: timedelta) -> bool:
    """Wait until all keys are set; return False if the time is up. Raises RuntimeError for a store that is lost."""
    try:
        store.wait(list(keys), limit)
    except RuntimeError as error:
        # a FileStore has no class of its own for it, and the text is the same for all stores
        if not str(error).lower().startswith("wait timeout"):
            raise
        return False
    return True
