"""Exit statuses of `labkit launch`: torchrun's for any failure of a rank; a shell's for SIGINT, SIGTERM and SIGPIPE."""

FAILED, INTERRUPTED, TERMINATED, UNREAD = 1, 130, 143, 141
