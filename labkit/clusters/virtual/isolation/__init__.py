"""Makes a rank that is a thread look like a process of its own, at no cost when ranks switch."""
