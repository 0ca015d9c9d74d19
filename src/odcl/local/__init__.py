"""At the user: its model (step 1 of Algorithm 1), and its last step after the download.

    fit        step 1: every user's model, and what it uploads of it
    exact      the exact solver, by the shape of a user's rows: normal equations, or the rows' span
    newton     damped Newton for losses that are not quadratic
    problem    users in stacks of equal size, and the way back to their models
    stacked    linear systems of stacks: Cholesky, conjugate gradients
    solvers    other local solvers: projected SGD, scikit-learn's estimators
    terms      mixed groups: a user's data term, and its last step
    receive    the last step: the posterior of mixed groups, or the group's model
    predict    rows by the models of their users

A solve goes fit > problem (stacks) > exact > newton > stacked.
"""
