"""``report.html``: one file that a store manager understands and a statistician trusts.

Facts (``facts``) are gathered from a saved artifact, never from a live model. ``svg`` draws the
pictures that are there without a script and in print; ``sections`` and ``render`` make the file of
them; ``assets`` holds its style and its script.

No plotting library is inlined. The largest page has 10,000 users, each of whom is a point in two
pictures, a row of a table and a page of its own, selected together: points are drawn on a canvas
above our own SVG (10,000 in some 10 ms), and what is selected is ordinary SVG and HTML, which
screen readers read and which prints. Plotly alone would be 4.5 of the 5 MB that a page may have,
and would draw the static pictures, which must be there without a script, a second time; it and
Vega ask for a weaker content policy than ours (one script, by its digest). What we need of them,
axes and ticks, are fifty lines. So the page needs no extra package, and takes about 100 kB.
"""
