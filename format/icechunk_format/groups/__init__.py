"""Reads and changes the arrays of a group, by positions along its dimensions.

Two doors: this one reads boxes, and ``changing`` changes arrays.

Rows, columns and labels are the matter of ``tables``, above this room.
"""
