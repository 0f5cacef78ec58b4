"""Small helpers for what the Linux kernel offers and Python's library does not, one subject a file.

They import the standard library only: some run before torch is imported, some in the sandbox before and around a
submission's processes.
"""
