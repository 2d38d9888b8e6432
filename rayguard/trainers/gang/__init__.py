"""Ranks that live and die together: ``rayguard.TrainerGang``."""
