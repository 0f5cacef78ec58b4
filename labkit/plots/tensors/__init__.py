"""Pictures of tensors: how they are cut over ranks, and which values they hold."""
