"""What makes a rank that is a thread look like a process of its own, without work when the baton changes hands."""
