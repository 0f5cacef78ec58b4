"""Parts shared by commands of `labkit` and rows of `labkit doctor`, in whichever package they are."""
