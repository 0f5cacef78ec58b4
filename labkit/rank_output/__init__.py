"""Output and failures of ranks as text for people: the same in a notebook's cell and in a terminal."""
