"""What hidden rubrics of several exercises share, one file a subject. It runs in the judge, never on a rank."""
