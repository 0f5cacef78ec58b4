"""Pictures of collectives: who has which part after each step, and what crosses between nodes."""
