"""The scheduler: virtual clocks, who runs next, when messages arrive and collectives end."""
