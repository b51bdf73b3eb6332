"""What ``kt new-plugin`` writes: a template of real files, and what turns it into a distribution."""
