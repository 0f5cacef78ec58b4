"""The device model: what operators cost a virtual GPU in time and memory, streams, tensors without values."""
