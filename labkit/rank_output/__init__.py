"""What ranks print and how they fail, as text for people: the same in a notebook's cell and in a terminal."""
