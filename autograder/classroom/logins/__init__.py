"""Ways in which people log in. Whichever a site chooses, only the people of the course can log in."""
