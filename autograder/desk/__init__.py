"""One notebook of one learner: judged once, its verdict kept in the folder of the course under a key."""
