"""A rank's end of its connection to the scheduler, for ranks that are threads and ranks that are processes."""
