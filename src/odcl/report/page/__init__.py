"""``report.html``: one file that a store manager understands and a statistician trusts.

``svg`` draws the pictures that are there without a script and in print, ``sections`` and ``render``
make the file of facts, ``assets`` holds its style and its script: points on a canvas above our own
SVG, for up to 10,000 users in two pictures. A plotting library would be most of the 5 MB that a
page may have, draw the static pictures a second time, and need a weaker content policy than ours
(one script, by its digest).
"""
