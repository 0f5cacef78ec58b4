"""torch's own key-value stores: virtual ranks have others under these names in `torch.distributed`."""

from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

__all__ = ["FileStore", "PrefixStore", "Store", "TCPStore"]
