"""rayguard: Ray-native fault tolerance for RL post-training of language models."""
