"""Marks after the judge: what lateness costs, who had more time, files for learning platforms."""
