"""Marks after the judge: late penalties, extensions, exports for learning platforms."""
