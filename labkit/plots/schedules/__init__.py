"""Pictures of schedules: what a rank does when, and which ranks it waits for."""
