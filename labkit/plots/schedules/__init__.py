"""Pictures of schedules: what a rank does when, and for whom it waits."""
