"""The shortest step of a model with 13 billion parameters on 32 GPUs, of those whose memory suffices."""
