"""Side by side with systems that people know: brought by hand, measured in the same run as ours."""
