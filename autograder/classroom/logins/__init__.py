"""How people prove who they are. Whichever way a site takes, only the people of the course can log in."""
