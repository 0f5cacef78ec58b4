"""The fastest all-reduce on irregular clusters: unequal links, and one slow node."""
