"""Groups of users with more parameters than mixed groups can carry: the numerics.

folds      users split by their ids
groups     what the server finds: linear class scores of each group, and how users differ
last_step  at the user: its group, and how far it leaves it
"""
