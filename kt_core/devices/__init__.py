"""The devices of this machine: which kinds there are, who made them, what torch says of each."""
