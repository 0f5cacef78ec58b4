"""What is given of exercise 11, `ddp`: argument checks, the bucket, the wrapper's surface, and what ranks agree on."""
