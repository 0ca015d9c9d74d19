"""Groups of users with more parameters than mixed groups can carry: the numerics.

moments       what users send; users split by their ids: what is learned is measured on others
groups        what the server finds: linear class scores of each group, and how users differ
last_step     at the user: its group, and how far it leaves it
squared_step  the last step with squared loss: ridge around its groups' model
slopes        users' penalised fits side by side, in the span of their rows
"""
