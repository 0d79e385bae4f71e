"""Speed claims, each with the bare baseline that it is measured against in the same run."""
