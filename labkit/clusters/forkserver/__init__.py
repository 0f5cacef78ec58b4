"""A forkserver that has torch imported; every run gets fresh processes forked from it."""
