"""What commands of `labkit` and rows of `labkit doctor` share, in whichever package they are."""
