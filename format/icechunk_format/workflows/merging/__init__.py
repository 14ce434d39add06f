"""Merges arrays that both branches have grown, and names labels in conflicts of merges."""
