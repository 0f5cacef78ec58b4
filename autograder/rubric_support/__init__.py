"""Helpers that hidden rubrics of several exercises share, by subject. They run in the judge, never on a rank."""
