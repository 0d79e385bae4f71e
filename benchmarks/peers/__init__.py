"""Side by side with well-known systems: brought by hand, measured in the same run as ours."""
