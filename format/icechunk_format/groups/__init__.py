"""Reads boxes of the arrays of a group, by positions along its dimensions.

Rows, columns and labels are the matter of ``tables``, above this room.
"""
